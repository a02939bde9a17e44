// The live figures of one answer: speed, accepted tokens by depth, and tokens by origin.
//
// It only counts the passes that it is given with their times (milliseconds of any one clock). Speeds exclude the first
// pass, which also computes the prompt; the time to the first token is a figure of its own. The speed is measured here
// until the server reports its own at the end: several passes of a fast server arrive at the same time, so the measured
// speed of a short answer is arbitrary.

const SECOND = 1000;

export class Figures {
  tokens = 0;
  /** Passes that added tokens, and those of them that had a draft. */
  passes = 0;
  drafts = 0;
  draftedTokens = 0;
  acceptedTokens = 0;
  /** Tokens by origin: "target" or a drafter's name. */
  byOrigin = new Map();
  /** By depth, from 1: the passes that drafted a token of this depth, and those that accepted one. */
  positions = [];
  /** `[milliseconds since the request, tokens so far]`, one entry per pass. */
  points = [];
  /** When the answer was complete, on the clock of `now`. */
  ended = null;
  #started;
  #serverSpeed = null;

  constructor(now) {
    this.#started = now;
  }

  add(pass, now) {
    if (pass.tokens.length === 0 && pass.drafted.length === 0) return;
    this.passes += 1;
    this.tokens += pass.tokens.length;
    for (const { origin } of pass.tokens) this.byOrigin.set(origin, (this.byOrigin.get(origin) ?? 0) + 1);
    if (pass.drafted.length > 0) this.#addDraft(pass.drafted);
    if (pass.tokens.length > 0) this.points.push([now - this.#started, this.tokens]);
  }

  /** The answer is complete. `timings` are the server's own, with llama.cpp's names, if it sent any. */
  end(now, timings = null) {
    this.ended = now;
    this.#serverSpeed = timings?.predicted_per_second ?? null;
    this.lossyLenience = timings?.lossy_lenience ?? null;
  }

  /** A tree may have several tokens of a depth, at most one of them accepted: each depth counts once per pass. */
  #addDraft(drafted) {
    this.drafts += 1;
    this.draftedTokens += drafted.length;
    const accepted = new Map();
    for (const token of drafted) {
      accepted.set(token.depth, accepted.get(token.depth) || token.accepted);
      if (token.accepted) this.acceptedTokens += 1;
    }
    for (const [depth, was] of accepted) {
      while (this.positions.length < depth) this.positions.push({ drafted: 0, accepted: 0 });
      if (depth < 1) continue;
      this.positions[depth - 1].drafted += 1;
      if (was) this.positions[depth - 1].accepted += 1;
    }
  }

  /** Milliseconds from the request to the first token; null before it. */
  get firstToken() {
    return this.points.length > 0 ? this.points[0][0] : null;
  }

  /** Tokens per second from the first pass to the last, measured or the server's; null before the second pass. */
  get speed() {
    if (this.points.length < 2) return null;
    if (this.#serverSpeed !== null) return this.#serverSpeed;
    const [from, before] = this.points[0];
    const [to, all] = this.points.at(-1);
    return to > from ? ((all - before) * SECOND) / (to - from) : null;
  }

  /** Tokens per second over the second before `now`, or since the first pass; null before the second pass. */
  speedAt(now) {
    if (this.points.length < 2) return null;
    const to = now - this.#started;
    const from = Math.max(to - SECOND, this.points[0][0]);
    if (to <= from) return null;
    let last = this.points.length - 1;
    while (last > 0 && this.points[last][0] > from) last -= 1;
    return ((this.tokens - this.points[last][1]) * SECOND) / (to - from);
  }

  /** 1 + accepted tokens per draft, as servers define it; null before the first draft. */
  get acceptedLength() {
    return this.drafts > 0 ? 1 + this.acceptedTokens / this.drafts : null;
  }

  /** Whether fewer tokens than this were received; false if the server does not report tokens. */
  isShorterThan(length) {
    return this.tokens > 0 && this.tokens < length;
  }

  get tokensPerPass() {
    return this.passes > 0 ? this.tokens / this.passes : null;
  }
}

/** The first byte in which two texts differ, with the text around it; null if they are equal. */
export function firstDifference(one, other) {
  const [a, b] = [one, other].map((text) => new TextEncoder().encode(text));
  const length = Math.min(a.length, b.length);
  let at = 0;
  while (at < length && a[at] === b[at]) at += 1;
  if (at === length && a.length === b.length) return null;
  const from = Math.max(at - 12, 0);
  const around = (bytes) => new TextDecoder().decode(bytes.slice(from, at + 24));
  return { at, one: around(a), other: around(b) };
}
