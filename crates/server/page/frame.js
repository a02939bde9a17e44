// One place where the page waits for the next frame: whatever wants to change the document is done once a frame, all
// together, so that a stream of any speed costs one layout a frame. Tasks that run last may read the layout.

const tasks = new Set();
const lastTasks = new Set();
let waiting = false;

function run(now) {
  waiting = false;
  for (const queue of [tasks, lastTasks]) {
    const ready = [...queue];
    queue.clear();
    for (const task of ready) task(now);
  }
}

/** Runs `task(now)` once in the next frame, however often it is asked for; `last` ones after all others. */
export function onFrame(task, { last = false } = {}) {
  (last ? lastTasks : tasks).add(task);
  if (!waiting) requestAnimationFrame(run);
  waiting = true;
}

/** An element with a class and text or children. Text is always text: nothing in this page parses HTML. */
export function element(name, className = "", ...children) {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...children);
  return made;
}
