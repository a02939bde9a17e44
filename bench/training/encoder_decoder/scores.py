"""How near written texts are to the wanted ones."""
import collections
import math


def common(one, two):
    """The length of the longest common subsequence."""
    row = [0] * (len(two) + 1)
    for mine in one:
        last = 0
        for at, other in enumerate(two, 1):
            last, row[at] = row[at], last + 1 if mine == other else max(row[at], row[at - 1])
    return row[-1]


def similarity(found, wanted):
    one, two = found.split(), wanted.split()
    return 2 * common(one, two) / max(1, len(one) + len(two))


def bleu(pairs):
    """BLEU of texts of words separated by spaces, each with one wanted text, up to four words, without smoothing."""
    hits, tried, found_words, wanted_words = [0] * 4, [0] * 4, 0, 0
    for found, wanted in pairs:
        one, two = found.split(), wanted.split()
        found_words, wanted_words = found_words + len(one), wanted_words + len(two)
        for n in range(4):
            grams = [collections.Counter(tuple(words[at:at + n + 1]) for at in range(len(words) - n))
                     for words in (one, two)]
            hits[n] += sum((grams[0] & grams[1]).values())
            tried[n] += sum(grams[0].values())
    if 0 in hits:
        return 0.0
    mean = sum(math.log(hit / all_) for hit, all_ in zip(hits, tried)) / 4
    return 100 * math.exp(mean + min(0.0, 1 - wanted_words / found_words))
