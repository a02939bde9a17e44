"""Trains tiny SentencePiece models and tokenizes texts with them, as vectors for
crates/text/tests/text/sentencepiece.rs.

    python bench/peers/sentencepiece_vectors.py OUT [--small]

Writes `NAME.model` and `NAME.jsonl` (lines of a text and its tokens) into OUT for several settings of training; with
--small only the two that are committed in crates/text/tests/sentencepiece. Needs sentencepiece.
"""

import io
import json
import pathlib
import random
import sys

import sentencepiece

WORDS = (
    "the a of to and in is it on was for that cat dog house green tree runs jumps over under aaa aaaa Zürich naïve 12 "
    "345 você 你好 世界 это"
).split()
TEXTS = [
    "", " ", "  ", "a", " a", "a ", "  a  b   c  ", "the cat runs", "thecat", "The Cat!", "aaaaaaaaaaa",
    "aaa aaaa aaaaa",
    "\n", "a\nb", "a\n\n  b\n", "\ta\t", "a\u00a0b", "a\u3000b", "\u200ba", "é", "e\u0301",
    "ﬁne ½ ①", "ＡＢＣ　１２", "Ⅷ ™", "你好，世界。", "это кот",
    "👍🏽 👩‍👩‍👧 🇪🇺", "\u0000a", "a\u0000b", "a\u0001\u0007b", "\x7f\x80", "\ufeffa", "▁",
    "a▁b", "▁▁a", "<s>x", "x</s>", "<unk>", "[user]", "a[user]b", "a [user] b",
    "[user][user]", "[[user]]",
    
    "<0x41>", "12 345 678", "zzzzz qqq", "ööö", "Zürich, naïve!", "\r\n\r\n",
    "ab\u0301c", "ﷺ", "ｶﾞ", "a  [user]  b", "x\u2028y", "ÀÁÂ",
]  # fmt: skip
SETTINGS = {
    "bpe": dict(
        model_type="bpe", byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False
    ),
    "unigram": dict(model_type="unigram", rules=True),
    "bpe_nfkc": dict(model_type="bpe", normalization_rule_name="nmt_nfkc"),
    "bpe_bare": dict(model_type="bpe", normalization_rule_name="nfkc", add_dummy_prefix=False, byte_fallback=True),
    "unigram_nfkc": dict(model_type="unigram", normalization_rule_name="nmt_nfkc"),
    "unigram_bytes": dict(model_type="unigram", normalization_rule_name="nfkc_cf", byte_fallback=True),
    "unigram_identity": dict(
        model_type="unigram", normalization_rule_name="identity", remove_extra_whitespaces=False
    ),
    "unigram_whole": dict(model_type="unigram", normalization_rule_name="nmt_nfkc", split_by_whitespace=False),
}


def main(out, small=False):
    out = pathlib.Path(out)
    out.mkdir(parents=True, exist_ok=True)
    draw = random.Random(11)
    lines = [" ".join(draw.choices(WORDS, k=12)) for _ in range(400)]
    parts = ["a", "aa", " ", "  ", "the", "cat", "é", "\u0301", "你", "👍", "[user]", "\n", "ﬁ", "x"]
    texts = TEXTS + ["".join(draw.choices(parts, k=12)) for _ in range(20 if small else 300)]
    for name, settings in list(SETTINGS.items())[: 2 if small else None]:
        settings = dict(settings)
        if settings.pop("rules", False):
            # A small table of characters: ligatures, wide letters, spaces.
            rules = out / "rules.tsv"
            pairs = {"ﬁ": "fi", "½": "1/2", "e\u0301": "é"}
            pairs |= {"\u3000": " ", "\u00a0": " ", "\t": " ", "\u200b": "", "™": "TM"}
            pairs |= {chr(ord("Ａ") + at): chr(ord("A") + at) for at in range(26)}
            code = lambda text: " ".join(f"{ord(letter):X}" for letter in text)
            rules.write_text("".join(f"{code(left)}\t{code(right)}\n" for left, right in pairs.items()))
            settings["normalization_rule_tsv"] = str(rules)
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_writer=model,
            vocab_size=340 if settings.get("byte_fallback") else 90,
            hard_vocab_limit=False, user_defined_symbols=["[user]"], minloglevel=2, num_threads=1, **settings,
        )  # fmt: skip
        (out / f"{name}.model").write_bytes(model.getvalue())
        encoder = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
        cases = [json.dumps([text, encoder.encode(text)], ensure_ascii=False) for text in texts]
        (out / f"{name}.jsonl").write_text("\n".join(cases) + "\n")
    (out / "rules.tsv").unlink(missing_ok=True)


if __name__ == "__main__":
    main(sys.argv[1], "--small" in sys.argv)
