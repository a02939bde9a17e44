#!/usr/bin/env python3
"""Makes the vocabulary of the small encoder-decoders: a Unigram model (as of SentencePiece) with byte fallback.

    python3 vocabulary.py DATA OUT --size 4096

DATA/train.jsonl is what tasks.py made; OUT gets a tokenizer in the format of Hugging Face. As in T5, `<pad>` is token
0, `</s>` token 1 and ends every source and target, `<unk>` is token 2. Nothing is normalized, and no text is unknown:
characters without a token become bytes.
"""
import argparse
import json
import random

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

SPECIAL = ["<pad>", "</s>", "<unk>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
BYTE_SCORE = -20.0
# A space is put before every text, and words are told apart by the space before them.
SPACES = {"prepend_scheme": "always", "split": True}


def tokenizer_of(pieces):
    """The tokenizer of a list of pieces and their scores, of which the first ones are SPECIAL."""
    whole = Tokenizer(models.Unigram(pieces, unk_id=SPECIAL.index("<unk>"), byte_fallback=True))
    whole.pre_tokenizer = pre_tokenizers.Metaspace(**SPACES)
    whole.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(**SPACES)])
    whole.add_special_tokens(SPECIAL)
    whole.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=whole, pad_token="<pad>", eos_token="</s>", unk_token="<unk>",
                                   model_max_length=512)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("out")
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--texts", type=int, default=30_000, help="tasks to count in")
    options = parser.parse_args()
    with open(f"{options.data}/train.jsonl") as lines:
        tasks = [json.loads(line) for line in lines]
    random.Random(0).shuffle(tasks)
    # A copy would count a text twice.
    texts = [text for task in tasks[:options.texts]
             for text in ([task["source"]] + [task["target"]] * (task["task"] == "translate"))]
    trained = Tokenizer(models.Unigram())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(**SPACES)
    trained.train_from_iterator(texts, trainers.UnigramTrainer(
        vocab_size=options.size, special_tokens=SPECIAL, unk_token="<unk>", shrinking_factor=0.7, show_progress=False))
    # The pieces are in the order of their scores: the last ones make room for the bytes.
    pieces = json.loads(trained.to_str())["model"]["vocab"][:options.size - len(BYTES)]
    saved = tokenizer_of([tuple(piece) for piece in pieces] + [(byte, BYTE_SCORE) for byte in BYTES])
    saved.save_pretrained(options.out)
    tokens = [len(ids) for ids in saved([task["source"] for task in tasks[:2000]])["input_ids"]]
    print(f"{len(saved)} tokens; sources have {sum(tokens) / len(tokens):.0f} on average, {max(tokens)} at most")
    sample = "translate English to German: The naïve fox — 3 years old — is “here”."
    print(saved.tokenize(sample), saved.decode(saved(sample)["input_ids"], skip_special_tokens=True) == sample)


if __name__ == "__main__":
    main()
