//! Every rank but the first: it does what rank 0 tells it until rank 0 ends the job.

use std::collections::BTreeMap;
use std::sync::Arc;

use foretoken::models::Opened;
use foretoken_model::checkpoint::Sample;
use foretoken_model::{Batch, CacheEdit, CacheRows, Executor, ExecutorError, Loaded, Packed, PageTable, Source, Span};

use crate::command::{Answer, Call, Command, OptionsMessage, SourceMessage, page_table, page_tables};
use crate::group::Group;

/// Follows rank 0 until it ends the job.
///
/// # Errors
/// A rank does not answer, or rank 0 sends what cannot be read.
pub fn follow(group: &Arc<Group>) -> Result<(), ExecutorError> {
    let (models, executors) = (BTreeMap::new(), BTreeMap::new());
    let mut follower = Follower { group: Arc::clone(group), models, executors };
    loop {
        let bytes = group.next()?;
        let command = serde_json::from_slice(&bytes)
            .map_err(|error| ExecutorError::Failed { message: format!("rank 0: expected a command, found {error}") })?;
        if !follower.obey(command)? {
            return Ok(());
        }
    }
}

/// A model of this rank.
enum Model {
    /// Its files are open.
    Open(Box<Opened>),
    /// This rank's part is loaded.
    Loaded(Box<dyn Packed>),
}

struct Follower {
    group: Arc<Group>,
    models: BTreeMap<u64, Model>,
    executors: BTreeMap<u64, Box<dyn Executor>>,
}

impl Follower {
    /// Does what it is told. Returns whether the job goes on.
    fn obey(&mut self, command: Command) -> Result<bool, ExecutorError> {
        match command {
            Command::Open { model, name, sample } => {
                let opened = open(&name, &sample).map(|opened| {
                    self.models.insert(model, Model::Open(Box::new(opened)));
                });
                self.answer(opened)?;
            }
            Command::Load { model, executor, options } => {
                let loaded = self.load(model, executor, &options);
                self.answer(loaded)?;
            }
            Command::Executor { model, executor, options } => {
                let made = self.make(model, executor, &options);
                self.answer(made)?;
            }
            Command::Forget { model } => {
                self.models.remove(&model);
            }
            Command::Call { executor, call } => self.call(executor, call)?,
            Command::Stop => return Ok(false),
        }
        Ok(true)
    }

    fn answer(&self, result: Result<(), String>) -> Result<(), ExecutorError> {
        self.group.answer(&result.map_or_else(Answer::Failed, |()| Answer::Done))
    }

    /// Loads this rank's part of an open model, and says with each layer that it still works.
    fn load(&mut self, model: u64, executor: u64, options: &OptionsMessage) -> Result<(), String> {
        let Some(Model::Open(opened)) = self.models.remove(&model) else {
            return Err(format!("model {model}: expected its files to be open, found none"));
        };
        let options = options.options().ok_or("options: expected types that this rank knows")?;
        let group = &self.group;
        let working = &mut |_, _| {
            // If rank 0 is gone, the next answer says so.
            let _ = group.answer(&Answer::Working);
        };
        let Loaded { executor: own, weights, .. } =
            opened.load(&group.rank(), options, working).map_err(|error| error.to_string())?;
        self.models.insert(model, Model::Loaded(weights));
        self.executors.insert(executor, own);
        Ok(())
    }

    /// Makes a further executor over a loaded model.
    fn make(&mut self, model: u64, executor: u64, options: &OptionsMessage) -> Result<(), String> {
        let Some(Model::Loaded(weights)) = self.models.get(&model) else {
            return Err(format!("model {model}: expected it to be loaded"));
        };
        let options = options.options().ok_or("options: expected types that this rank knows")?;
        let own = weights.executor(options).map_err(|error| error.to_string())?;
        self.executors.insert(executor, own);
        Ok(())
    }

    /// Repeats a call of rank 0. What fails in it fails in the same way there, which reports it.
    fn call(&mut self, executor: u64, call: Call) -> Result<(), ExecutorError> {
        if let Call::Close = call {
            self.executors.remove(&executor);
            return Ok(());
        }
        let unknown = || ExecutorError::Failed { message: format!("executor {executor}: expected one that is open") };
        let own = self.executors.get_mut(&executor).ok_or_else(unknown)?;
        let _ = match call {
            Call::Open { sequence, source: None } => own.open(sequence, None),
            Call::Open { sequence, source: Some(SourceMessage { tokens, table, is_computed }) } => {
                let table = page_table(&table);
                own.open(sequence, Some(Source { tokens: &tokens, table: &table, is_computed }))
            }
            Call::Release { sequence } => {
                own.release(sequence);
                Ok(())
            }
            Call::Forward { spans, hidden_layers } => {
                let tables: Vec<Vec<PageTable>> = spans.iter().map(|span| page_tables(&span.tables)).collect();
                let spans: Vec<Span<'_>> = spans.iter().zip(&tables).map(|(span, tables)| span.span(tables)).collect();
                own.forward(&Batch { spans: &spans, hidden_layers: &hidden_layers })
            }
            Call::Move { tables, from, to } => {
                own.rows(CacheEdit::Move { tables: &page_tables(&tables), from: &from, to })
            }
            Call::Copy { from, to, start, end } => {
                let (from, to) = (page_tables(&from), page_tables(&to));
                own.rows(CacheEdit::Copy { from: &from, to: &to, positions: start..end })
            }
            Call::SaveRows { group, table, start, end } => {
                let table = page_table(&table);
                own.save_rows(CacheRows { group, table: &table, positions: start..end }, &mut Vec::new())
            }
            Call::LoadRows { group, table, start, end } => {
                let (bytes, table) = (self.group.next()?, page_table(&table));
                own.load_rows(CacheRows { group, table: &table, positions: start..end }, &bytes)
            }
            Call::Close => unreachable!("it is handled above"),
        };
        Ok(())
    }
}

/// Opens a model whose files must be those of rank 0.
fn open(name: &str, expected: &Sample) -> Result<Opened, String> {
    let opened = Opened::named(name).map_err(|error| error.to_string())?;
    match opened.checkpoint.sample().difference(expected) {
        Some(part) => Err(format!("{name}: {part}: expected those of rank 0, found others")),
        None => Ok(opened),
    }
}
