"""Training of heads and draft models on synthetic shards: rolled-out steps against the package `speculators` (a golden
head) and against a forward pass that computes each row alone; a resumed run against an uninterrupted one; what is
written against what is read back; wrong input. Skipped where torch, safetensors or gguf are missing.
"""
import contextlib
import io
import json
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]
try:
    import gguf
    import safetensors.torch
    import tokenizers  # noqa: F401
    import torch
    MISSING = None
except ImportError as error:
    MISSING = error.name
if MISSING is None:
    import begin
    import export
    import head as program
    import measure
    import network
    import synthetic
    from problem import Problem
    from shards import Folder, Stream, Text
    from target import Shape, Target, excluder
    torch.set_num_threads(1)
GOLDEN = HERE.parent.parent / "crates" / "model" / "tests" / "golden" / "eagle3-speculators"


class Files(unittest.TestCase):
    """A target and shards of 120 texts in a folder that goes away."""

    @classmethod
    def setUpClass(cls):
        if MISSING:
            raise unittest.SkipTest(f"no {MISSING}")
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = Path(folder.name)
        synthetic.target_folder(cls.folder / "target")
        synthetic.target_gguf(cls.folder / "target.gguf", cls.folder / "target")
        cls.texts = synthetic.texts(120)
        synthetic.shards(cls.folder / "shards", cls.texts)

    def main(self, command, out, *arguments, target="target"):
        """Runs the program; what it prints."""
        common = [command, "--hidden", str(self.folder / "shards"), "--target", str(self.folder / target), "--out",
                  str(self.folder / out), "--draft-vocabulary", "40", "--batch", "100", "--threads", "1"]
        return self.run_program([*common, *arguments])

    def run_program(self, arguments):
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            program.main(list(map(str, arguments)))
        return said.getvalue()

    def network(self, out, kind, target="target"):
        """What a run trained."""
        saved = torch.load(self.folder / out / "checkpoint.pt", weights_only=True)
        found = kind(Shape(*saved["shape"]), saved["ids"], Target(self.folder / target))
        found.load_state_dict(saved["network"])
        return found, saved


def naive(of, text, row, steps):
    """Own hidden states of a row in each step, one row at a time, with the keys that it would find in use."""
    layer, shape, width = of.layers[0], of.shape, of.shape.width

    def read(token, hidden, position):
        residual = layer.hidden_norm(hidden)
        x = torch.cat([layer.input_layernorm(of.embeddings[text.tokens[token]][None]), residual], -1)
        at = torch.tensor([position])
        k, v = layer.keys_values(x, at)
        return residual, layer.queries(x, at)[0], k[0], v[0]

    def run(residual, q, cache):
        attended = []
        for one in range(shape.heads):
            kv = one // (shape.heads // shape.kv_heads)
            scores = torch.stack([q[one] @ k[kv] for k, _ in cache]) * shape.head_dim ** -0.5
            attended.append(sum(w * v[kv] for w, (_, v) in zip(scores.softmax(0), cache)))
        return layer.behind(residual, torch.cat(attended)[None])

    cache, said = [], []
    for before in range(row + 1):
        fused = of.fc(text.hidden[before, :3 * width].float()[None])
        residual, q, k, v = read(before + 1, fused, before)
        cache.append((k, v))
    for step in range(steps):
        if step > 0:
            residual, q, k, v = read(row + 1 + step, said[-1], row + step)
            cache.append((k, v))
        said.append(run(residual, q, cache))
    return said


class Arithmetic(Files):
    def test_rolled_out_steps_are_those_of_the_package(self):
        golden = safetensors.torch.load_file(GOLDEN / "golden.safetensors")
        weights = safetensors.torch.load_file(GOLDEN / "model.safetensors")
        ids = weights.pop("d2t") + torch.arange(40)
        shape = synthetic.SHAPE._replace(layers=1, epsilon=0.01)
        of = network.Head(shape, ids, Target(self.folder / "target"))
        of.embeddings = weights.pop("embed_tokens.weight")
        self.assertEqual(int(weights.pop("t2d").sum()), 40)
        of.load_state_dict(weights)
        # Row i reads token i + 1; the seventh row goes on for three steps.
        tokens = torch.cat([torch.zeros(1), golden["tokens"]]).long()
        hidden = torch.cat([golden["hidden"], torch.zeros(4, 96)])
        batch = network.Batch([Text(tokens, 0, hidden)], torch.tensor([1] * 6 + [4] + [0] * 4))
        with torch.no_grad():
            own = torch.cat([rows for _, rows in of.steps(batch)])
            logits = torch.cat([rows for _, rows in of.said(batch)])
        torch.testing.assert_close(own, golden["own"], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(logits, golden["logits"], rtol=1e-4, atol=1e-4)

    def test_rows_see_what_they_see_in_use(self):
        torch.manual_seed(3)
        of = network.Head(synthetic.SHAPE._replace(layers=1), torch.arange(40), Target(self.folder / "target"))
        texts = [Text(tokens, prompt, hidden) for tokens, prompt, hidden in self.texts[:3]]
        batch = measure.batch_of(texts, 5)
        # Rows leave at different steps.
        batch.reach = torch.minimum(batch.reach, torch.arange(len(batch.reach)) % 6)
        with torch.no_grad():
            found = {(int(f), step): row for step, (live, rows) in enumerate(of.steps(batch))
                     for f, row in zip(live, rows)}
            self.assertEqual(len(found), int(batch.reach.sum()))
            for at, text in zip(batch.starts.tolist(), texts):
                taking = (row for row in range(len(text.tokens)) if batch.reach[at + row] > 0)
                for row in taking:
                    steps = int(batch.reach[at + row])
                    for step, expected in enumerate(naive(of, text, row, steps)):
                        torch.testing.assert_close(found[at + row, step], expected[0], rtol=1e-4, atol=1e-4)

    def test_chunks_of_attention_change_nothing(self):
        torch.manual_seed(4)
        q, k, v = torch.randn(40, 4, 8), torch.randn(40, 2, 8), torch.randn(40, 2, 8)
        own = [(torch.randn(40, 2, 8), torch.randn(40, 2, 8))]
        whole = network.attend(q, k, v, torch.arange(40), own)
        with mock.patch.object(network, "CHUNK", 7):
            torch.testing.assert_close(network.attend(q, k, v, torch.arange(40), own), whole)

    def test_the_loss_and_its_gradients(self):
        torch.manual_seed(5)
        hidden, matrix = torch.randn(50, 8, requires_grad=True), torch.randn(12, 8, requires_grad=True)
        laws, of, weights, bias = torch.rand(9, 12).softmax(-1), torch.arange(50) % 9, torch.rand(50), torch.rand(12)
        expected = -((hidden @ matrix.T + bias).log_softmax(-1) * laws[of] * weights[:, None]).sum() * 3
        expected.backward()
        grads = hidden.grad.clone(), matrix.grad.clone()
        hidden.grad = matrix.grad = None
        with mock.patch.object(network, "LOSS_CHUNK", 16):
            found = network.SoftCrossEntropy.apply(hidden, matrix, bias, laws, of, weights) * 3
        found.backward()
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close((hidden.grad, matrix.grad), grads)


class Runs(Files):
    def same(self, left, right):
        for part in ("network", "optimizer"):
            left_leaves, right_leaves = (torch.utils._pytree.tree_leaves(of[part]) for of in (left, right))
            self.assertEqual(len(left_leaves), len(right_leaves))
            for one, other in zip(left_leaves, right_leaves):
                if isinstance(one, torch.Tensor):
                    self.assertTrue(torch.equal(one, other))
                else:
                    self.assertEqual(one, other)

    def test_a_resumed_run_is_an_uninterrupted_one_to_the_bit(self):
        for command, kind in (("train", network.Head), ("draft", network.Draft)):
            with self.subTest(command):
                arguments = ["--steps", "6", "--seed", "7", "--dtype", "bf16", "--context", "32"]
                arguments += ["--width", "24"] if command == "draft" else []
                self.main(command, f"{command}-whole", *arguments)
                with mock.patch.object(program.Trainer, "over", lambda trainer: trainer.step >= 3):
                    self.main(command, f"{command}-cut", *arguments)
                half = self.network(f"{command}-cut", kind)[1]
                self.assertEqual(half["step"], 3)
                self.main(command, f"{command}-cut", *arguments, "--resume")
                whole, cut = (self.network(f"{command}-{run}", kind)[1] for run in ("whole", "cut"))
                self.same(whole, cut)
                self.assertEqual((whole["step"], whole["words"], whole["source"]),
                                 (cut["step"], cut["words"], cut["source"]))
                self.assertFalse(torch.equal(half["network"]["norm.weight"], cut["network"]["norm.weight"]))

    def test_it_learns_a_text_by_heart(self):
        shards = self.folder / "one"
        made = [(tokens, prompt, hidden) for tokens, prompt, hidden in self.texts[:6]]
        synthetic.shards(shards, made)
        said = self.main("train", "heart", "--hidden", shards, "--steps", "40", "--show-every", "0", "--rate", "0.01")
        losses = [float(line.split("loss ")[1]) for line in said.splitlines() if "loss" in line]
        self.assertLess(losses[-1], losses[0] - 1.0)

    def test_options_of_a_resumed_run_are_those_of_its_beginning(self):
        self.main("train", "options", "--steps", "1")
        for arguments, named in ((["--resume", "--decay", "0.5"], "--resume: --decay: expected 0.8"), ([], "--out"),
                                 (["--decay", "0"], "--decay"), (["--batch", "0"], "--batch"),
                                 (["--resume", "--out", self.folder / "shards"], "--resume: expected a run")):
            with self.assertRaisesRegex(SystemExit, named):
                self.main("train", "options", "--steps", "1", *arguments)


class Written(Files):
    def test_a_head_is_read_back(self):
        self.main("train", "exported", "--steps", "2")
        run = ["export", "--run", self.folder / "exported", "--target", self.folder / "target", "--license", "mit",
               "--gguf", self.folder / "head.gguf", "--speculators", self.folder / "head"]
        self.run_program(run)
        of, saved = self.network("exported", network.Head)
        reader = gguf.GGUFReader(self.folder / "head.gguf")
        keys = {key: field.contents() for key, field in reader.fields.items()}
        self.assertEqual(keys["general.architecture"], "eagle3")
        self.assertEqual((keys["general.license"], keys["general.base_model.0.name"]), ("mit", "target"))
        self.assertEqual((keys["eagle3.extract_layers"], keys["eagle3.norm_before_residual"]), ([1, 2, 3], True))
        self.assertEqual((keys["eagle3.vocab_size"], keys["eagle3.target_hidden_size"]), (96, 32))
        tensors = {tensor.name: gguf.dequantize(tensor.data, tensor.tensor_type) for tensor in reader.tensors
                   if tensor.name != "d2t"}
        d2t = next(tensor.data for tensor in reader.tensors if tensor.name == "d2t")
        self.assertEqual(d2t.tolist(), saved["ids"].tolist())
        self.assertEqual(len(tensors), len(of.state_dict()))
        q = torch.from_numpy(tensors["blk.0.attn_q.weight"].copy())
        back = q.reshape(4, 4, 2, -1).swapaxes(1, 2).reshape(q.shape)  # neighbours become halves again
        weights = of.state_dict()
        for name, found in (("layers.0.self_attn.q_proj.weight", back.numpy()),
                            ("lm_head.weight", tensors["output.weight"]), ("fc.weight", tensors["fc.weight"]),
                            ("layers.0.mlp.down_proj.weight", tensors["blk.0.ffn_down.weight"]),
                            ("layers.0.hidden_norm.weight", tensors["blk.0.attn_norm_2.weight"])):
            torch.testing.assert_close(torch.tensor(found), weights[name], rtol=0, atol=float(
                weights[name].abs().max()) / 127)
        folder = safetensors.torch.load_file(self.folder / "head" / "model.safetensors")
        self.assertEqual((folder.pop("d2t") + torch.arange(40)).tolist(), saved["ids"].tolist())
        self.assertEqual(folder.pop("t2d").nonzero()[:, 0].tolist(), saved["ids"].tolist())
        self.assertEqual(folder.keys(), weights.keys())
        for name, tensor in folder.items():
            self.assertTrue(torch.equal(tensor, weights[name].bfloat16()))
        config = json.loads((self.folder / "head" / "config.json").read_text())
        self.assertEqual((config["eagle_aux_hidden_state_layer_ids"], config["draft_vocab_size"]), ([1, 2, 3], 40))
        target = Target(self.folder / "target")
        for form, nearness in (("head", 2.0 ** -8), ("head.gguf", 1 / 127)):
            begun = begin.Begun(self.folder / form, target)
            self.assertEqual(begun.ids.tolist(), saved["ids"].tolist())
            other = network.Head(begun.fit(target.shape, (1, 2, 3)), begun.ids, target)
            begun.give(other)
            for name, tensor in other.state_dict().items():
                torch.testing.assert_close(tensor, weights[name], rtol=0, atol=float(
                    weights[name].abs().max()) * nearness, msg=f"{form}: {name}")

    def test_training_goes_on_from_a_head(self):
        self.main("train", "first", "--steps", "30", "--rate", "0.01")
        self.run_program(["export", "--run", self.folder / "first", "--target", self.folder / "target",
                          "--gguf", self.folder / "first.gguf", "--speculators", self.folder / "first-folder"])
        loss = lambda said: float(said.split("loss ")[1].split()[0])
        new = loss(self.main("train", "new", "--steps", "1"))
        for form in ("first.gguf", "first-folder"):
            on = loss(self.main("train", f"on-{form}", "--steps", "1", "--from", self.folder / form))
            self.assertLess(on, new - 0.1)
        for head, named in (("target.gguf", "general.architecture: expected eagle3, found llama"),
                            ("target", "expected a head of speculators, found: KeyError"),
                            ("nothing", "expected a GGUF file of a head")):
            with self.assertRaisesRegex(SystemExit, named):
                self.main("train", "refused", "--steps", "1", "--from", self.folder / head)
        with self.assertRaisesRegex(SystemExit, r"--ffn: expected \d+ \(--from\), found 5"):
            self.main("train", "refused", "--steps", "1", "--from", self.folder / "first.gguf", "--ffn", "5")

    def test_a_draft_model_says_what_was_trained(self):
        for target in ("target", "target.gguf"):
            out = self.folder / f"draft-of-{target}"
            self.main("draft", f"run-{target}", "--steps", "2", "--width", "32", "--head-dim", "8", "--write", out,
                      target=target)
            of, _ = self.network(f"run-{target}", network.Draft, target)
            tensors = export.draft_tensors(of, 96)
            hidden = torch.randn(7, 32)
            expected = (hidden @ of.lm_head.T + of.bias).softmax(-1)
            found = (hidden @ tensors["lm_head.weight"].T).softmax(-1)
            torch.testing.assert_close(found[:, of.ids], expected[:, :-1])
            torch.testing.assert_close(found.sum(-1) - found[:, of.ids].sum(-1), expected[:, -1])
        folder = safetensors.torch.load_file(self.folder / "draft-of-target" / "model.safetensors")
        self.assertEqual(list(folder["lm_head.weight"].shape), [96, 32])
        self.assertTrue((self.folder / "draft-of-target" / "tokenizer.json").exists())
        reader = gguf.GGUFReader(self.folder / "draft-of-target.gguf")
        self.assertEqual(len(reader.fields["tokenizer.ggml.tokens"].contents()), 96)
        self.assertEqual({t.name: list(t.shape) for t in reader.tensors}["output.weight"], [32, 96])

    def test_a_draft_model_is_a_llama(self):
        try:
            from transformers import LlamaForCausalLM
            from transformers.utils import logging
        except ImportError:
            self.skipTest("no transformers")
        logging.disable_progress_bar()
        self.main("draft", "llama", "--steps", "2", "--width", "24", "--write", self.folder / "llama-written")
        of, _ = self.network("llama", network.Draft)
        said = LlamaForCausalLM.from_pretrained(self.folder / "llama-written", dtype=torch.float32)
        tokens, prompt, hidden = self.texts[0]
        batch = measure.batch_of([Text(tokens, prompt, hidden)], 1)
        with torch.no_grad():
            expected = (of.hidden(batch) @ of.lm_head.T + of.bias).softmax(-1)
            found = said(tokens[None]).logits[0].softmax(-1)
        torch.testing.assert_close(found[:, of.ids], expected[:, :-1], rtol=0.05, atol=0.003)  # bf16 weights


class Reading(Files):
    def test_a_folder_is_walked_in_epochs_and_a_stream_brings_the_same_texts(self):
        folder = Folder(self.folder / "shards", 0, 64, lambda _: False)
        self.assertEqual(len(folder.own) + len(folder.held), 120)
        self.assertTrue(folder.held)
        stream = Stream(io.BytesIO(synthetic.stream(self.texts)), 0, 64, lambda _: False, 10 ** 9, 1 << 30)
        for source in (folder, stream):
            epochs = []
            for _ in range(2):
                epoch = [text for _ in folder.own for text in source.take(1)]
                epochs.append([tuple(text.tokens.tolist()) for text in epoch])
            self.assertEqual(set(epochs[0]), set(epochs[1]))
            self.assertEqual(len(set(epochs[0])), len(folder.own))
            self.assertNotEqual(epochs[0], epochs[1])
        self.assertTrue(torch.equal(folder.counts(), Folder(self.folder / "shards", 1, 64, lambda _: False).counts()))

    def test_prompts_are_excluded_by_their_text(self):
        target = Target(self.folder / "target")
        prompt = self.texts[3][0][:6]
        text = "  ".join(target.decoder()(prompt[:6])).upper().replace("  ", "")
        (self.folder / "prompts.jsonl").write_text(json.dumps({"prompt": text}) + "\n")
        folder = Folder(self.folder / "shards", 0, 64, excluder([self.folder / "prompts.jsonl"], target))
        self.assertEqual(folder.left_out, 1)

    def test_both_forms_of_a_target_are_the_same(self):
        folder, file = Target(self.folder / "target"), Target(self.folder / "target.gguf")
        self.assertEqual(folder.shape._replace(epsilon=0), file.shape._replace(epsilon=0))
        self.assertEqual(folder.special, file.special)
        torch.testing.assert_close(folder.output, file.output, rtol=0, atol=0.03)
        tokens = torch.arange(1, 95)
        self.assertEqual(folder.decoder()(tokens), file.decoder()(tokens))

    def test_wrong_files_are_named(self):
        made = self.texts[:4]
        tokens = torch.cat([tokens for tokens, _, _ in made]).int()
        cases = {
            "format": synthetic.file_of(made, {**synthetic.ABOUT, "format": "other/1"}),
            "three layers": synthetic.file_of(made, {**synthetic.ABOUT, "layers": "1,2"}),
            "starts": synthetic.file_of(made, starts=torch.tensor([0, 5])),
            "prompt_lens": synthetic.file_of(made, prompt_lens=torch.tensor([1, 2, 3, 400], dtype=torch.int32)),
            "tokens": synthetic.file_of(made, tokens=tokens + 90),
            "hidden": synthetic.file_of(made, hidden=torch.zeros(3, 128)),
            "hidden: expected floats": synthetic.file_of(made, hidden=torch.ones(len(tokens), 128, dtype=torch.int8)),
            "a shard": b"nothing",
            "layers, width": synthetic.file_of(made, {"format": synthetic.ABOUT["format"]}),
        }
        for named, file in cases.items():
            folder = self.folder / "wrong"
            folder.mkdir(exist_ok=True)
            (folder / "00000.safetensors").write_bytes(file)
            with self.subTest(named), self.assertRaisesRegex(Problem, f"00000.*{named}"):
                Folder(folder, 0, 64, lambda _: False)
        with self.assertRaisesRegex(Problem, "text 4: expected .* bytes"):
            Stream(io.BytesIO(synthetic.stream(self.texts[:5])[:-9]), 0, 64, lambda _: False, 10 ** 9, 1 << 30)
        with self.assertRaisesRegex(SystemExit, "head.py: --hidden"):
            self.main("train", "nothing", "--hidden", self.folder / "target.gguf", "--steps", "1")


class Measured(Files):
    def test_tokens_a_pass_and_what_they_gain(self):
        self.assertEqual(measure.tokens_a_pass([0.5, 0.5, 1.0]), [1.5, 1.75, 2.0])
        costs = self.folder / "costs.json"
        costs.write_text(json.dumps({"passes": {str(n): 1 + 0.1 * (n - 1) for n in range(1, 10)}, "head": 0.15}))
        gains = measure.Costs(costs).gains([1.5, 1.75])
        self.assertAlmostEqual(gains[0], 1.5 / 1.25)
        self.assertAlmostEqual(gains[1], 1.75 / 1.5)
        costs.write_text("{}")
        with self.assertRaisesRegex(Problem, "passes of 1 to 9"):
            measure.Costs(costs)

    def test_one_that_says_what_the_target_says_is_always_accepted(self):
        target = Target(self.folder / "target")
        texts = [Text(tokens, prompt, hidden) for tokens, prompt, hidden in self.texts[:20]]
        held = measure.Held(iter(texts), target, torch.arange(96), 100)

        class Same:
            def said(self, batch):
                for step in range(measure.DEPTHS):
                    live = batch.live(step)
                    yield live, held.p[held.of[live + 1 + step]].log()
        accepted = held.evaluate(Same())
        self.assertEqual(accepted[0][0], 1.0)
        for rate in accepted[1]:
            self.assertAlmostEqual(rate, 1.0, places=4)
        self.assertEqual(len(list(measure.lines(accepted, None))), 2)


if __name__ == "__main__":
    unittest.main()
