"""`bench/inflate.py` changes no output: logits of a grown checkpoint are those of the small one, to the bit."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "bench")]
from questions import target  # noqa: E402

GOLDEN = ROOT / "crates" / "model" / "tests" / "golden"


def program():
    """The program: FORETOKEN, else that of the tests, else the release build; None if there is none."""
    built = [target() / kind / "foretoken" for kind in ("debug", "release")]
    places = [Path(os.environ["FORETOKEN"])] if os.environ.get("FORETOKEN") else built
    return next((place for place in places if place.is_file()), None)


def has_numpy():
    return subprocess.run([sys.executable, "-c", "import numpy"], capture_output=True).returncode == 0


@unittest.skipUnless(has_numpy(), "no numpy")
class Inflate(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def inflate(self, source, name, *sizes):
        """Runs the script; sizes are width, layers and inner width."""
        words = [word for pair in zip(("--width", "--layers", "--ffn"), sizes) for word in pair]
        command = [sys.executable, ROOT / "bench" / "inflate.py", source, self.folder / name, *words]
        return subprocess.run(list(map(str, command)), capture_output=True, text=True)

    def grow(self, source, name, *sizes):
        """The folder of a grown checkpoint."""
        done = self.inflate(source, name, *sizes)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return self.folder / name

    def logits(self, model, source):
        out = self.folder / f"{model.name}.logits"
        command = [program(), "logits", "-q", "-m", model, "--tokens", "0,5,6,7,33", "-o", out, *source]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return out.read_bytes()

    @unittest.skipUnless(program(), "no foretoken that is built")
    def test_grown_checkpoints_have_the_logits_of_the_small_ones(self):
        # A tied head with scaled logits, one of its own with gates, and mT5, whose halves have other numbers of layers.
        for name, source in {"llama": [], "t5": None, "t5-v1_1": None, "mt5": None}.items():
            source = ["--source-ids", "9,44,3,17,60,1"] if source is None else source
            config = json.loads((GOLDEN / name / "config.json").read_text())
            width = config.get("hidden_size") or config["d_model"]
            layers = max(config.get(field, 0) for field in ("num_hidden_layers", "num_layers", "num_decoder_layers"))
            # The small one in bf16, which the grown one is in.
            small = self.grow(GOLDEN / name, f"{name}-small", width, layers, 96)
            grown = self.grow(GOLDEN / name, f"{name}-grown", 4 * width, layers + 2, 256)
            self.assertGreater((grown / "model.safetensors").stat().st_size,
                               9 * (small / "model.safetensors").stat().st_size)
            self.assertEqual(self.logits(small, source), self.logits(grown, source), name)

    def test_what_cannot_be_grown_is_refused_in_one_line(self):
        other = self.folder / "other"
        shutil.copytree(GOLDEN / "gpt2", other)
        for source, sizes, expected in [
            (other, (), "model_type: expected one of llama, t5, mt5, found gpt2"),
            (GOLDEN / "t5", (33,), "--width 33: expected a multiple of 8, at least 32"),
            (GOLDEN / "t5", (64, 1), "--layers, --ffn: expected no less than the model has"),
        ]:
            done = self.inflate(source, "out", *sizes)
            self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1), done.stderr)
            self.assertIn(expected, done.stderr)


if __name__ == "__main__":
    unittest.main()
