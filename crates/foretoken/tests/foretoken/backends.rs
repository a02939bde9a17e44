//! Backends: one that is not the CPU's runs targets and draft models, and one that says nonsense is refused.

use std::sync::atomic::{AtomicUsize, Ordering};

use foretoken::generator::Choices;
use foretoken::models::{Backend, Cpu, Loaded, Options};
use foretoken::{Error, Event, Generator, ModelError};
use foretoken_model::{
    Batch, CacheEdit, Capacity, Executor, ExecutorError, Group, Network, Outputs, Progress, Source, Unpacked,
};

use crate::generators::settings;

/// The CPU's, which counts what it loads, and perhaps gives executors that say nonsense of themselves.
#[derive(Debug, Default)]
struct Counted {
    loaded: AtomicUsize,
    has_no_slots: bool,
}

impl Backend for Counted {
    fn name(&self) -> &'static str {
        "counted"
    }

    fn load(&self, network: Network<Unpacked>, options: Options, progress: Progress<'_>) -> Result<Loaded, ModelError> {
        self.loaded.fetch_add(1, Ordering::Relaxed);
        let loaded = Cpu.load(network, options, progress)?;
        if !self.has_no_slots {
            return Ok(loaded);
        }
        let capacity = Capacity { groups: vec![Group::state(0)], ..loaded.executor.capacity().clone() };
        Ok(Loaded { executor: Box::new(NoSlots(capacity)), ..loaded })
    }
}

/// An executor with states and no slots for them.
struct NoSlots(Capacity);

impl Executor for NoSlots {
    fn open(&mut self, _: u64, _: Option<Source<'_>>) -> Result<(), ExecutorError> {
        panic!("it is refused before")
    }

    fn release(&mut self, _: u64) {}

    fn forward(&mut self, _: &Batch<'_>) -> Result<(), ExecutorError> {
        panic!("it is refused before")
    }

    fn outputs(&self) -> &dyn Outputs {
        panic!("it is refused before")
    }

    fn rows(&mut self, _: CacheEdit<'_>) -> Result<(), ExecutorError> {
        panic!("it is refused before")
    }

    fn capacity(&self) -> &Capacity {
        &self.0
    }
}

#[test]
fn any_backend_runs_targets_and_draft_models() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let mut settings = settings(&folder);
    settings.speculation.spec_type = "draft+suffix".parse().expect("it is well-formed");
    settings.sampling.temperature = Some(0.0);
    let backend = Counted::default();
    let text = |choices: &Choices<'_>| {
        let mut generator = Generator::with(choices, &mut |_| {}).expect("both models are there");
        let request = generator.request("once upon a time").expect("the model has a tokenizer");
        let go_on = &mut |_: usize, _: &Event| -> Result<bool, Error> { Ok(true) };
        generator.run(vec![request], go_on).expect("it can run")[0].ids()
    };
    let found = text(&Choices { backend: &backend, ..Choices::new(&settings) });
    assert_eq!(backend.loaded.load(Ordering::Relaxed), 2, "a target and a draft model");
    assert_eq!(found, text(&Choices::new(&settings)));
}

#[test]
fn an_executor_that_says_nonsense_of_itself_is_refused_by_field() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let settings = settings(&folder);
    let backend = Counted { has_no_slots: true, ..Counted::default() };
    let choices = Choices { backend: &backend, ..Choices::new(&settings) };
    let refused = Generator::with(&choices, &mut |_| {}).map(drop).expect_err("it has no slots").to_string();
    let line = "backend counted: capacity: groups: group 0: slots: expected at least 1, found 0";
    assert!(refused.ends_with(&format!("demo-target: {line}")), "{refused}");
}
