// Example prompts, by model: for the demo models sentences of their small corpus, questions for models with a chat
// template, and beginnings of texts for models without one.

const DEMO = [
  "once upon a time, there was a little dog. tell me what he did",
  "i would like to find an italian restaurant in san jose for two people",
  "a train goes 60 miles an hour for 3 hours. how far does it go?",
];
const QUESTIONS = [
  "Explain in simple words why the sky is blue.",
  "Write a Python function that tells whether a word is a palindrome, with two tests.",
  "What should I look for when I buy a used bicycle? Answer as a short list.",
];
const BEGINNINGS = [
  "Once upon a time, in a village by the sea, there lived",
  "The three most important inventions of the nineteenth century were",
  "def is_palindrome(word: str) -> bool:\n    \"\"\"Tells whether a word reads the same backwards.\"\"\"\n",
];

/** The examples for a model. */
export function examplesFor({ id, meta }) {
  if (/^demo-(target|draft)$/.test(id)) return DEMO;
  return meta.chat ? QUESTIONS : BEGINNINGS;
}
