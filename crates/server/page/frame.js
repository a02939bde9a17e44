// Schedules changes of the document: all of them run together once per frame, so that a stream of any speed costs one
// layout per frame. Tasks with `last` may read the layout.

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

/** Runs `task(now)` once in the next frame, even if it is queued several times; `last` ones after all others. */
export function onFrame(task, { last = false } = {}) {
  (last ? lastTasks : tasks).add(task);
  if (!waiting) requestAnimationFrame(run);
  waiting = true;
}

/** An element with a class and text or children. Nothing in this page parses HTML. */
export function element(name, className = "", ...children) {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...children);
  return made;
}
