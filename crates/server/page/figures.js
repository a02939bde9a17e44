// The live figures of one text: speed, how many drafted tokens were accepted and at which depth, who wrote how much.
//
// Pure bookkeeping: it is told what came and when (milliseconds of any one clock) and knows neither the page nor the
// server. Speeds leave out the wait for the first pass, as the first pass also reads the prompt; that wait has a
// figure of its own. They are what is seen here, until the server tells its own at the end: passes of a fast server
// come several at a time, and a short text would then have any speed.

const SECOND = 1000;

export class Figures {
  tokens = 0;
  /** Passes that added tokens, and those of them that had a draft. */
  passes = 0;
  drafts = 0;
  draftedTokens = 0;
  acceptedTokens = 0;
  /** Tokens by who wrote them: "target" or a drafter's name. */
  byOrigin = new Map();
  /** By depth, from 1: in how many passes a token of this depth was drafted, and in how many one was accepted. */
  positions = [];
  /** `[milliseconds since the request, tokens so far]`, one entry a pass. */
  points = [];
  /** When all of it had come, on the clock of `now`. */
  ended = null;
  #started;
  #told = null;

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

  /** Nothing more comes. `timings` are the server's own, in llama.cpp's words, where it told some. */
  end(now, timings = null) {
    this.ended = now;
    this.#told = timings?.predicted_per_second ?? null;
  }

  /** A tree has several tokens of one depth, of which at most one is accepted: depths are counted once a pass. */
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

  /** Tokens a second from the first pass to the last, as seen here or as told at the end; null before the second. */
  get speed() {
    if (this.points.length < 2) return null;
    if (this.#told !== null) return this.#told;
    const [from, before] = this.points[0];
    const [to, all] = this.points.at(-1);
    return to > from ? ((all - before) * SECOND) / (to - from) : null;
  }

  /** Tokens a second over the second before `now`, or since the first pass; null before the second pass. */
  speedAt(now) {
    if (this.points.length < 2) return null;
    const to = now - this.#started;
    const from = Math.max(to - SECOND, this.points[0][0]);
    if (to <= from) return null;
    let last = this.points.length - 1;
    while (last > 0 && this.points[last][0] > from) last -= 1;
    return ((this.tokens - this.points[last][1]) * SECOND) / (to - from);
  }

  /** 1 + accepted tokens per draft, as servers count it; null before the first draft. */
  get acceptedLength() {
    return this.drafts > 0 ? 1 + this.acceptedTokens / this.drafts : null;
  }

  /** Whether fewer tokens came than this; not where no tokens are told. */
  isShorterThan(length) {
    return this.tokens > 0 && this.tokens < length;
  }

  get tokensPerPass() {
    return this.passes > 0 ? this.tokens / this.passes : null;
  }
}

/** The first byte in which two texts differ, with what stands around it, or null where they are the same bytes. */
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
