// Formats numbers and characters for people.

/** A number with about this many digits; "–" if there is none. */
export function short(number, digits = 3) {
  if (number === null || number === undefined || !Number.isFinite(number)) return "–";
  const before = Math.max(Math.floor(Math.log10(Math.abs(number) || 1)) + 1, 1);
  return number.toFixed(Math.max(digits - before, 0));
}

/** Milliseconds, as ms or s. */
export function duration(milliseconds) {
  if (milliseconds === null) return "–";
  return milliseconds < 1000 ? `${short(milliseconds, 2)} ms` : `${short(milliseconds / 1000)} s`;
}

export const count = (number, one) => `${number} ${one}${number === 1 ? "" : "s"}`;

const NAMED = new Map([["\n", "⏎"], ["\t", "⇥"], ["\r", "␍"]]);
// Invisible characters: controls, formats (also zero-width and direction marks), separators, private use, surrogates.
const UNSEEN = /[\p{Cc}\p{Cf}\p{Co}\p{Cs}\p{Zl}\p{Zp}]/gu;

/** A token's text with invisible characters made visible: line ends as symbols, others as <U+200B>. */
export function visible(text) {
  const name = (character) => `<U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}>`;
  return text.replace(UNSEEN, (character) => NAMED.get(character) ?? name(character));
}

/** A unique random word, also on pages without `crypto.randomUUID` (plain HTTP from another machine). */
export function randomWord() {
  return [...crypto.getRandomValues(new Uint32Array(4))].map((part) => part.toString(36).padStart(7, "0")).join("");
}
