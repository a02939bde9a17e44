//! A thread pool whose threads spin within a pass and park between passes.
//!
//! There is one job at a time, and an epoch tells a new job from the last one. Each thread has a range of the tasks and
//! a counter of the next one; when its range is done, it takes tasks of the other ranges. Consecutive tasks mostly read
//! adjacent memory, so what one task prefetches is what the same thread reads next. The caller works, too. Workers spin
//! for a new job for a while (a pass has a hundred jobs, a few microseconds apart), then yield, then park. The caller
//! waits only for the workers that joined the job, so a worker that sleeps, or whose core another program uses, delays
//! nothing. Which thread runs which task is not deterministic, but kernels write the same bits whichever thread runs
//! them. A fork-join of two threads that are awake takes 0.7 microseconds (2 cores of a Sapphire Rapids Xeon; the test
//! `fork_join` measures it).
//!
//! If the system refuses a thread, the pool has fewer threads; its size changes no result.
//!
//! All interleavings of its threads are tried with a model of its locks (`tests/loom`).
//!
//! There are no priorities and there is no nesting: a task must not call [`Pool::run`] on the pool that runs it.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::sync::{
    Arc, AtomicUsize, Builder, Condvar, JoinHandle, Mutex, MutexGuard, Ordering, SPINS, YIELDS, spin_loop, yield_now,
};

/// A function that starts a thread; in tests it may fail, as the system may.
pub type Spawn<'a> = &'a mut dyn FnMut(String, Box<dyn FnOnce() + Send>) -> std::io::Result<JoinHandle<()>>;

/// Maximum number of threads that are given back if the system refuses one.
const SPARE_THREADS: usize = 8;

/// A pool with a fixed number of threads, the caller's included.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Held during a job, since several callers may share the pool.
    run_lock: Mutex<()>,
}

/// A task body: (task number, number of the thread that runs it).
type Body<'a> = dyn Fn(usize, usize) + Sync + 'a;

struct Shared {
    /// Number of the current job; `SHUTDOWN` when the pool is dropped.
    epoch: AtomicUsize,
    /// The current job; `None` once all of its tasks are taken.
    job: Mutex<Option<Job>>,
    /// The next task of each thread's range.
    next: Vec<Counter>,
    /// The number of workers that joined the current job and have not left it.
    running: AtomicUsize,
    wake: Condvar,
    /// The number of parked workers. If it is 0, the system call that wakes them is skipped.
    parked: AtomicUsize,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

#[derive(Clone, Copy)]
struct Job {
    body: *const Body<'static>,
    tasks: usize,
}
// SAFETY: the body is `Sync`, and `Pool::run_as` withdraws the job and waits for those who joined it.
unsafe impl Send for Job {}

/// A counter on a cache line of its own.
#[repr(align(128))]
struct Counter(AtomicUsize);

const SHUTDOWN: usize = usize::MAX;

impl Pool {
    /// Makes a pool of `threads` threads; 0 counts as 1, and for 1 no thread is started. If the system refuses one, the
    /// pool keeps the threads that it got, except for up to 8 and at most half of them (rounded up), which it gives
    /// back: a pool that took the last thread would leave none to the rest of the program. [`threads`](Self::threads)
    /// returns the number of threads.
    pub fn new(threads: usize) -> Self {
        Self::with_spawn(threads, &mut |name, work| Builder::new().name(name).spawn(work))
    }

    /// Like [`new`](Self::new), which calls it, but with threads that `spawn` starts. It is public only for tests: they
    /// refuse threads as a system does (`tests/kernels/pool.rs`), or give those of a model (`tests/loom`).
    #[doc(hidden)]
    pub fn with_spawn(threads: usize, spawn: Spawn<'_>) -> Self {
        let all = Self::start(threads, spawn);
        let workers = all.workers.len();
        if all.threads() >= threads {
            return all;
        }
        drop(all); // the new ones are started when these have ended
        Self::start(1 + workers - workers.div_ceil(2).min(SPARE_THREADS), spawn)
    }

    fn start(threads: usize, spawn: Spawn<'_>) -> Self {
        let shared = Arc::new(Shared {
            epoch: AtomicUsize::new(0),
            job: Mutex::new(None),
            next: (0..threads.max(1)).map(|_| Counter(AtomicUsize::new(0))).collect(),
            running: AtomicUsize::new(0),
            wake: Condvar::new(),
            parked: AtomicUsize::new(0),
            panic: Mutex::new(None),
        });
        let workers = (1..threads)
            .map_while(|worker| {
                let shared = Arc::clone(&shared);
                spawn(format!("foretoken-{worker}"), Box::new(move || shared.run_jobs(worker))).ok()
            })
            .collect();
        Self { shared, workers, run_lock: Mutex::new(()) }
    }

    /// Number of threads, the caller's included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `task(i)` for each i in `0..tasks` once, in any order, and returns when all are done.
    ///
    /// # Panics
    /// If a task panics, with its message, once no task runs any more; some tasks may not have been started.
    pub fn run(&self, tasks: usize, task: &(impl Fn(usize) + Sync)) {
        self.run_as(tasks, &|number, _| task(number));
    }

    /// Runs `task(i, chunk)` on the chunks of `len` elements of `data`, the last of which may be shorter.
    ///
    /// # Panics
    /// As [`run`](Self::run), and if `len` is 0.
    pub fn each_chunk<T: Send>(&self, data: &mut [T], len: usize, task: &(impl Fn(usize, &mut [T]) + Sync)) {
        struct Start<T>(*mut T);
        // SAFETY: tasks take disjoint chunks of the slice behind it, whose elements may go to other threads.
        unsafe impl<T: Send> Sync for Start<T> {}
        let (start, total) = (&Start(data.as_mut_ptr()), data.len());
        self.run(total.div_ceil(len), &|i| {
            let first = i * len;
            // SAFETY: chunk i lies in `data`, which is borrowed for the whole call, and belongs to task i alone.
            task(i, unsafe { std::slice::from_raw_parts_mut(start.0.add(first), len.min(total - first)) });
        });
    }

    /// Like [`run`](Self::run); the second argument of the task is the number of the thread, below
    /// [`threads`](Self::threads), which runs one task of a call at a time.
    ///
    /// # Panics
    /// As [`run`](Self::run).
    pub fn run_as(&self, tasks: usize, task: &(impl Fn(usize, usize) + Sync)) {
        if self.workers.is_empty() || tasks < 2 {
            (0..tasks).for_each(|number| task(number, 0));
            return;
        }
        let run_lock = self.run_lock.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let shared = &*self.shared;
        let body: *const Body<'_> = task;
        // SAFETY: only the lifetime is erased; the body is not used after this function returns (see `Job`).
        let body: *const Body<'static> = unsafe { std::mem::transmute(body) };
        // A thread that the system refused has a range, too, which the other threads take after their own.
        for (thread, next) in shared.next.iter().enumerate() {
            next.0.store(shared.first_task(thread, tasks), Ordering::Relaxed);
        }
        {
            let mut job = shared.lock_job();
            *job = Some(Job { body, tasks });
            shared.epoch.fetch_add(1, Ordering::Release);
        }
        // A worker counts itself as parked under the lock of the job, before its last look at the epoch: either
        // it saw the new job, or it is counted here.
        if shared.parked.load(Ordering::Relaxed) > 0 {
            shared.wake.notify_all();
        }
        let own = catch_unwind(AssertUnwindSafe(|| shared.take_tasks(0, tasks, |number| task(number, 0))));
        *shared.lock_job() = None;
        let mut checks = 0;
        while shared.running.load(Ordering::Acquire) > 0 {
            pause(&mut checks);
        }
        let theirs = shared.panic.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
        drop(run_lock);
        if let Some(payload) = own.err().or(theirs) {
            resume_unwind(payload);
        }
    }
}

/// Waits a moment: it spins at first, then yields the core.
fn pause(checks: &mut usize) {
    *checks += 1;
    if *checks < SPINS { spin_loop() } else { yield_now() }
}

impl Shared {
    /// The first task of a thread's range.
    fn first_task(&self, thread: usize, tasks: usize) -> usize {
        thread * tasks / self.next.len()
    }

    /// Runs the tasks of the thread's own range, then those that are left of the other ranges.
    fn take_tasks(&self, thread: usize, tasks: usize, run: impl Fn(usize)) {
        let threads = self.next.len();
        for owner in (thread..threads).chain(0..thread) {
            let end = self.first_task(owner + 1, tasks);
            loop {
                let number = self.next[owner].0.fetch_add(1, Ordering::Relaxed);
                if number >= end {
                    break;
                }
                run(number);
            }
        }
    }

    fn run_jobs(&self, worker: usize) {
        let mut seen = 0;
        loop {
            seen = self.wait_for_job_after(seen);
            if seen == SHUTDOWN {
                return;
            }
            let Some(Job { body, tasks }) = self.join() else { continue };
            // SAFETY: the caller of `run_as` waits for `running` to reach zero, which happens below, so the body is
            // alive here.
            let body = unsafe { &*body };
            let result =
                catch_unwind(AssertUnwindSafe(|| self.take_tasks(worker, tasks, |number| body(number, worker))));
            if let Err(payload) = result {
                let mut first = self.panic.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                match *first {
                    None => *first = Some(payload),
                    // Dropping the payload might panic again here, and the caller would wait for this thread forever.
                    Some(_) => std::mem::forget(payload),
                }
            }
            self.running.fetch_sub(1, Ordering::Release);
        }
    }

    /// Joins the current job, if there is one. The worker is counted under the lock under which the caller withdraws
    /// the job, so the caller waits for every worker that joined.
    fn join(&self) -> Option<Job> {
        let job = self.lock_job();
        if job.is_some() {
            self.running.fetch_add(1, Ordering::Relaxed);
        }
        *job
    }

    fn lock_job(&self) -> MutexGuard<'_, Option<Job>> {
        self.job.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn wait_for_job_after(&self, seen: usize) -> usize {
        let mut checks = 0;
        while checks < SPINS + YIELDS {
            let epoch = self.epoch.load(Ordering::Acquire);
            if epoch != seen {
                return epoch;
            }
            pause(&mut checks);
        }
        let mut job = self.lock_job();
        self.parked.fetch_add(1, Ordering::Relaxed);
        loop {
            let epoch = self.epoch.load(Ordering::Acquire);
            if epoch != seen {
                self.parked.fetch_sub(1, Ordering::Relaxed);
                return epoch;
            }
            job = self.wake.wait(job).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        {
            let _job = self.shared.lock_job();
            self.shared.epoch.store(SHUTDOWN, Ordering::Release);
        }
        self.shared.wake.notify_all();
        for worker in self.workers.drain(..) {
            // A worker cannot panic: panics of tasks are caught.
            let _ = worker.join();
        }
    }
}
