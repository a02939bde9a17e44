"""Prompts out of documents: instructions of several kinds, to which a model then writes the texts a head learns from.

usage: prompts.py [--articles FILE ...] [--questions FILE ...] [--code FILE ...] [--begun FILE ...] [-n COUNT]
                  [--seed S] [--exclude FILE ...] > prompts.jsonl

The idea: a head learns what its model says, so it needs prompts and no answers, and prompts of the kind that will be
asked. Whoever has those takes them. Others have documents: articles become summaries to be written, questions with a
passage beside them, and titles to write, explain and argue about; programs become questions about programs; questions
stay as they are; of texts to go on with (--begun), for models that know no chats, the beginnings are taken. Files have
a line of JSON for each document, with a "text" (articles: the title, an empty line, the rest; questions: the first
turn, marked or not). Prompts of files named by --exclude, which are to be measured later, are left out by their text.
Written are lines of {"prompt": ...}, the same for the same seed. Left out: translations.
"""

import argparse
import json
import random
import re
import sys

# What is asked about a title alone; {} is the title. The second half asks for lists, tables, steps and short answers.
ABOUT = (
    "What is {}?", "Who or what is {}, and why does it matter?", "Explain {} to a ten-year-old.",
    "Write a short blog post about {}.", "Write an engaging introduction to an article about {}.",
    "Describe the history of {} in a few sentences.", "Compose a friendly email to a colleague about {}.",
    "Pretend to be an expert on {}. What would you tell a visitor first?", "Write a poem about {}.",
    "Imagine you are a character in a story about {}. Introduce yourself.", "Write the first paragraph of a story in "
    "which {} plays a part.", "What are common misunderstandings about {}?", "Compare {} with something similar.",
    "Discuss the advantages and disadvantages of {}.", "How would you teach a class about {}? Give an outline.",
    "List five facts about {}.", "Give three examples that have to do with {}, with a sentence about each.",
    "What questions would you ask somebody who knows {} well?", "Answer in one sentence: what is {} known for?",
    "Give step by step advice to somebody who wants to learn about {}.",
    "Write a dialogue between two friends about {}.",
)
SUMMARIES = (
    "Summarize: {}", "Summarize the following article in three sentences.\n\n{}",
    "What is the main point of this text?\n\n{}", "List the key facts of the following text.\n\n{}",
    "Write a headline and a short summary of this article:\n\n{}",
    "Extract all names and places from this text:\n\n{}", "Rewrite this text in simpler words:\n\n{}",
)
PASSAGES = (
    "Use the following text to answer the question.\n\n{text}\n\nQuestion: what is said about {title}?",
    "Context:\n{text}\n\nQuestion: what is {title}?\nAnswer:",
    "Read the documents and answer.\n\nDocument 1: {text}\n\nDocument 2: {other}\n\nWhat do we learn about {title}?",
    "{text}\n\nBased on this text, {question}",
)
QUESTIONS = ("who is involved?", "when did it happen?", "where does it take place?", "why is it important?",
             "what happened first?", "how many are mentioned?")
CODE = (
    "Explain what this program does:\n\n```python\n{}\n```", "Write a docstring for this function:\n\n{}",
    "Find possible mistakes in this code:\n\n{}", "Rewrite this function so that it is easier to read:\n\n{}",
    "Write tests for this function:\n\n{}",
)
TASKS = ("Write a Python function called {}.", "How would you implement {} in Python? Show the code.")


def documents(paths):
    """The texts of files."""
    for path in paths:
        with open(path, encoding="utf-8") as lines:
            for line in lines:
                if line.strip():
                    yield json.loads(line)["text"]


def normalized(text):
    """A text as it is compared: letters and digits."""
    return " ".join(re.findall(r"\w+", text.lower()))


def excluded(paths):
    """The texts of prompts that are not to be among those that are written."""
    texts = set()
    for path in paths:
        with open(path, encoding="utf-8") as lines:
            for line in lines:
                for text in strings(json.loads(line)) if line.strip() else ():
                    texts.add(normalized(text))
    return {text for text in texts if len(text) >= 20}


def strings(value):
    """All strings within a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from strings(one)


def opening(text, words):
    """The first sentences, up to so many words."""
    cut = " ".join(text.split()[:words])
    end = max(cut.rfind(mark) for mark in ".!?")
    return cut[: end + 1] if end > len(cut) // 2 else cut


def question(text):
    """The first turn of a conversation, without marks."""
    turn = re.search(r"<\|user\|>(.*?)<\|", text, re.DOTALL)
    return (turn.group(1) if turn else text).strip()


def of_articles(articles, rng):
    """Prompts about articles, without end."""
    whole = [(title.strip(), body.strip()) for title, body in
             (text.split("\n\n", 1) for text in articles if "\n\n" in text)]
    whole = [(title, body) for title, body in whole if 3 <= len(title) <= 60 and len(body.split()) >= 60]
    while whole:
        (title, body), (_, other) = rng.choice(whole), rng.choice(whole)
        kind = rng.random()
        if kind < 0.55:
            yield rng.choice(ABOUT).format(title)
        elif kind < 0.8:
            yield rng.choice(SUMMARIES).format(opening(body, rng.randint(60, 260)))
        else:
            yield rng.choice(PASSAGES).format(text=opening(body, rng.randint(60, 180)), title=title,
                                              other=opening(other, 60), question=rng.choice(QUESTIONS))


def of_code(programs, rng):
    """Prompts about functions of programs, without end."""
    functions = [found for text in programs for found in re.findall(r"^def .*?(?=\n\S|\Z)", text, re.M | re.S)]
    functions = [found.strip() for found in functions if 3 <= len(found.splitlines()) <= 30 and len(found) < 1200]
    while functions:
        function = rng.choice(functions)
        name = function[4:].split("(", 1)[0].replace("_", " ").strip()
        yield rng.choice(TASKS).format(name) if rng.random() < 0.4 else rng.choice(CODE).format(function)


def beginnings(texts, rng):
    """Beginnings of texts, each once: up to a turn of an assistant where turns are marked."""
    for text in texts:
        turns = [mark.end() for mark in re.finditer(r"<\|assistant\|>", text)]
        words = text.split(" ")
        most = max(1, min(40, len(words) // 2))
        yield text[: rng.choice(turns)] if turns else " ".join(words[: rng.randint(1, most)])


def main():
    """Writes prompts to standard output."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("articles", "questions", "code", "begun", "exclude"):
        parser.add_argument(f"--{name}", nargs="+", default=[], metavar="FILE")
    parser.add_argument("-n", type=int, default=5000, metavar="COUNT")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    questions = [question(text) for text in documents(options.questions)]
    rng.shuffle(questions)
    begun = list(documents(options.begun))
    rng.shuffle(begun)
    sources = [(0.6, of_articles(list(documents(options.articles)), rng)),
               (0.1, of_code(list(documents(options.code)), rng)), (0.3, iter(questions)),
               (1.0, beginnings(begun, rng))]
    seen, written = excluded(options.exclude), 0
    while written < options.n and sources:
        place = rng.choices(range(len(sources)), [weight for weight, _ in sources])[0]
        prompt = next(sources[place][1], None)
        if prompt is None:
            del sources[place]
        elif (text := normalized(prompt)) not in seen:
            seen.add(text)
            written += 1
            print(json.dumps({"prompt": prompt}, ensure_ascii=False))
    if written < options.n:
        print(f"prompts.py: the files have {written} prompts, {options.n} were asked for", file=sys.stderr)


if __name__ == "__main__":
    main()
