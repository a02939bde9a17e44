#!/usr/bin/env python3
"""Times llama.cpp for one pass over several numbers of rows, in the JSON of `foretoken bench pass --json`.

    python3 bench/peers/llama_cpp_pass.py MODEL.gguf -t 2 --rows 1,8 --context 64,2048

The passes are those of foretoken: rows of one sequence after a context that is in the cache, with the logits of every
row up to 64 rows, and of the last row alone beyond. Numbers of rows alternate, each short pass follows an untimed one
of its kind, and times are medians. The script calls llama_decode itself, since the class Llama would also copy the
logits into arrays. Needs llama-cpp-python (README.md), which is llama.cpp as pip compiles it. Settings are llama.cpp's
defaults, including flash attention and an f16 cache.
"""

import argparse
import ctypes
import json
import statistics
import sys
import time

import llama_cpp

# As in `foretoken bench pass`.
ROWS_WITH_LOGITS = 64
BATCH_LEN = 512
FLASH_ATTENTION = {"auto": -1, "off": 0, "on": 1}


def logits(rows):
    """Rows whose logits a pass computes."""
    return rows if rows <= ROWS_WITH_LOGITS else 1


class Timer:
    """A model whose passes are timed."""

    def __init__(self, path, threads, positions, rows_max, flash_attention):
        quiet = llama_cpp.llama_log_callback(lambda level, text, data: None)
        self.keep = quiet
        llama_cpp.llama_log_set(quiet, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        model_settings = llama_cpp.llama_model_default_params()
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), model_settings)
        if not self.model:
            raise SystemExit(f"error: {path}: llama.cpp cannot load it")
        settings = llama_cpp.llama_context_default_params()
        settings.n_ctx = positions
        settings.n_batch = settings.n_ubatch = max(BATCH_LEN, rows_max)
        settings.n_threads = settings.n_threads_batch = threads
        settings.flash_attn_type = FLASH_ATTENTION[flash_attention]
        # Newer versions limit the rows with logits of one sequence; 0 means no limit.
        if hasattr(settings, "n_outputs_max_per_seq"):
            settings.n_outputs_max_per_seq = 0
        self.context = llama_cpp.llama_init_from_model(self.model, settings)
        if not self.context:
            raise SystemExit(f"error: {path}: llama.cpp finds no room for {positions} positions")
        self.vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.batch = llama_cpp.llama_batch_init(settings.n_batch, 0, 1)
        self.batch_len = settings.n_batch
        self.cached = 0

    def decode(self, len_, wanted):
        """Seconds of one pass over `len_` rows after the cached ones, the last `wanted` with logits."""
        batch = self.batch
        batch.n_tokens = len_
        for i in range(len_):
            batch.token[i] = (self.cached + i) * 7919 % self.vocabulary
            batch.pos[i] = self.cached + i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = int(i >= len_ - wanted)
        start = time.perf_counter()
        result = llama_cpp.llama_decode(self.context, batch)
        llama_cpp.llama_synchronize(self.context)
        seconds = time.perf_counter() - start
        if result != 0:
            raise SystemExit(f"error: llama_decode of {len_} rows behind {self.cached}: returned {result}")
        return seconds

    def fill(self, context):
        """Computes the text's tokens up to `context`."""
        while self.cached < context:
            len_ = min(self.batch_len, context - self.cached)
            self.decode(len_, 1)
            self.cached += len_

    def timed(self, rows):
        """Seconds of one pass, whose rows are then removed from the cache."""
        seconds = self.decode(rows, logits(rows))
        memory = llama_cpp.llama_get_memory(self.context)
        if not llama_cpp.llama_memory_seq_rm(memory, 0, self.cached, -1):
            raise SystemExit("error: llama_memory_seq_rm: the pass cannot be forgotten")
        return seconds


def whole_numbers(text):
    """`1,2,3` as a list."""
    return [int(word) for word in text.split(",")]


def main():
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("model", help="a GGUF file")
    ask.add_argument("-t", "--threads", type=int, required=True)
    ask.add_argument("--rows", type=whole_numbers, default=[1, 2, 4, 8, 16, 64, 512])
    ask.add_argument("--context", type=whole_numbers, default=[64])
    ask.add_argument("--repeat", type=int, default=5)
    ask.add_argument("--flash-attention", choices=FLASH_ATTENTION, default="auto", help="default: auto")
    given = ask.parse_args()
    contexts = sorted(set(given.context))
    positions = contexts[-1] + max(given.rows)
    timer = Timer(given.model, given.threads, positions, max(given.rows), given.flash_attention)
    objects = []
    for context in contexts:
        timer.fill(context)
        times = {rows: [] for rows in given.rows}
        for turn in range(given.repeat + 1):
            for rows in times:
                if turn == 0 or rows <= ROWS_WITH_LOGITS:
                    timer.timed(rows)
                if turn > 0:
                    times[rows].append(timer.timed(rows))
        objects.append({
            "model": given.model,
            "context": context,
            "threads": given.threads,
            "repeat": given.repeat,
            "version": llama_cpp.__version__,
            "system": llama_cpp.llama_print_system_info().decode(),
            "flash_attention": given.flash_attention,
            "ms_per_pass": {str(rows): round(1e3 * statistics.median(all), 4) for rows, all in times.items()},
        })
    json.dump(objects, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
