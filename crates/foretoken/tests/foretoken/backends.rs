//! Backends: any backend runs targets and draft models, and one with an impossible capacity is refused.

use std::sync::atomic::{AtomicUsize, Ordering};

use foretoken::generator::Choices;
use foretoken::models::{Backend, Cpu, Loaded, Options};
use foretoken::{Generator, ModelError};
use foretoken_model::{
    Batch, CacheEdit, Capacity, Executor, ExecutorError, Group, Network, Outputs, Progress, Source, Unpacked,
};

use crate::generators::{run, settings};

/// A CPU backend that counts the models that it loads, and may return executors with an impossible capacity.
#[derive(Debug, Default)]
struct CountingBackend {
    loaded: AtomicUsize,
    has_no_slots: bool,
}

impl Backend for CountingBackend {
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

/// An executor with recurrent states and no slots for them.
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
    let backend = CountingBackend::default();
    let text = |choices: &Choices<'_>| {
        let mut generator = Generator::with(choices, &mut |_| {}).expect("both models are there");
        let request = generator.request("once upon a time").expect("the model has a tokenizer");
        run(&mut generator, &[request])[0].ids()
    };
    let found = text(&Choices { backend: &backend, draft_backend: &backend, ..Choices::new(&settings) });
    assert_eq!(backend.loaded.load(Ordering::Relaxed), 2, "a target and a draft model");
    assert_eq!(found, text(&Choices::new(&settings)));
}

#[test]
fn an_executor_with_an_impossible_capacity_is_refused_by_field() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let settings = settings(&folder);
    let backend = CountingBackend { has_no_slots: true, ..CountingBackend::default() };
    let choices = Choices { backend: &backend, ..Choices::new(&settings) };
    let refused = Generator::with(&choices, &mut |_| {}).map(drop).expect_err("it has no slots").to_string();
    let line = "backend counted: capacity: groups: group 0: slots: expected at least 1, found 0";
    assert!(refused.ends_with(&format!("demo-target: {line}")), "{refused}");
}
