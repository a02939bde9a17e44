//! Records against the clock: plain decoding and every contestant take turns on one engine, record by record.
//!
//! The prompt of a record is computed once, for all who go on from it, and is not part of what is timed. Nobody always
//! comes first, and nobody always behind the same one. Every repetition, and every half of the records where halves
//! learn from each other, is a tenant of its own: texts that drafters learned in one they do not know in the next. How
//! often each drafter was right the engine keeps for all of them. Left out: what is said of it ([`super::page`]).

use std::collections::BTreeMap;
use std::time::Instant;

use foretoken::store::Store;
use foretoken_console::failure::Failure;
use foretoken_console::interrupts::Interrupts;
use foretoken_console::progress::bar;
use foretoken_console::records::Record;
use foretoken_engine::{BudgetKind, Engine, Event, FinishReason, Order, Race, Request, Stats};
use foretoken_model::Executor;
use foretoken_speculation::{DraftSettings, Tenant};

use super::contestant::{Contestant, Equipment};
use super::play::{Script, conversations};
use crate::generate::interval::Sample;
use crate::generate::order::order;

/// What came of one record, once.
#[derive(Clone, Debug, Default)]
pub struct Lap {
    /// Tokens behind the first pass, and their time.
    pub behind: Sample,
    /// Passes behind the first, and the time that the network took for them.
    pub passes: (usize, f64),
    /// What was counted, of all passes.
    pub stats: Stats,
}

/// A way of decoding: plain, or a contestant.
pub struct Way {
    /// As the command line names it, or `plain`.
    pub name: String,
    /// Numbers of its drafters.
    drafters: Vec<u8>,
    order: Order,
    /// Of each record, one a repetition.
    pub laps: Vec<Vec<Lap>>,
}

impl Way {
    fn new(name: String, drafters: Vec<u8>, order: Order, records: usize) -> Self {
        Self { name, drafters, order, laps: vec![Vec::new(); records] }
    }
}

/// How long, and how.
pub struct Plan<'a> {
    /// The budget of a record.
    pub budget: &'a dyn Fn(&Record) -> BudgetKind,
    /// What drafters are asked for.
    pub draft: DraftSettings,
    /// Whether drafts are weighed by costs, which are measured first then.
    pub weighs: bool,
    /// Whether halves of the records learn from each other.
    pub by_halves: bool,
    /// The number of each record, by which messages name it.
    pub numbers: &'a [usize],
    /// Repetitions.
    pub repeat: usize,
    /// No further record begins after so many seconds.
    pub seconds: Option<f32>,
}

/// An engine on which records are timed, and what was found.
pub struct Timed<'a> {
    engine: Engine,
    script: Script,
    plan: Plan<'a>,
    records: &'a [Record],
    /// The conversation of each record.
    conversations: Vec<usize>,
    /// Plain decoding, and then every contestant.
    pub ways: Vec<Way>,
    /// Seconds of passes by their rows, those of prompts left out.
    pub passes: BTreeMap<usize, Vec<f64>>,
    tenants: u64,
}

impl<'a> Timed<'a> {
    /// An engine over a network that says what is in the script, with the drafters of all contestants.
    ///
    /// # Errors
    /// What a drafter needs is not given.
    pub fn new(
        (executor, script): (Box<dyn Executor>, Script),
        context: usize,
        (contestants, equipment): (&[Contestant], Equipment<'_>),
        records: &'a [Record],
        plan: Plan<'a>,
    ) -> Result<Self, Failure> {
        let mut engine = Engine::new(executor, 1, context);
        let mut ways = vec![Way::new("plain".to_string(), Vec::new(), Order::Given, records.len())];
        for contestant in contestants {
            let drafters = contestant.drafters(equipment)?;
            let numbers = drafters.into_iter().map(|drafter| engine.add_drafter(drafter)).collect();
            ways.push(Way::new(contestant.name(), numbers, contestant.order(), records.len()));
        }
        let conversations = conversations(records);
        let passes = BTreeMap::new();
        Ok(Self { engine, script, plan, records, conversations, ways, passes, tenants: 0 })
    }

    /// Lets all drafters learn what everybody may know.
    pub fn learn_all(&mut self, known: &Store) {
        // Those of other users are not for this one.
        let whose = |tenant: &Option<Tenant>| tenant.is_none_or(|tenant| tenant == Tenant::default());
        for text in known.documents().filter(|text| whose(&text.tenant)) {
            self.engine.warm_up(&text.tokens, text.prompt_len, None);
        }
    }

    /// Plays all records in all ways; after Ctrl-C those that all ways have played.
    ///
    /// # Errors
    /// A text cannot go on, or a drafter failed.
    pub fn run(&mut self) -> Result<(), Failure> {
        let started = Instant::now();
        let Plan { repeat, seconds, weighs, .. } = self.plan;
        if weighs {
            self.engine.measure_costs();
        }
        let done = bar("records", repeat * self.records.len());
        'repetitions: for repetition in 0..repeat {
            let tenants = self.new_tenants();
            for place in 0..self.records.len() {
                if seconds.is_some_and(|most| started.elapsed().as_secs_f32() >= most && repetition + place > 0) {
                    break 'repetitions;
                }
                let tenant = tenants[self.conversations[place] % tenants.len()];
                match self.turn(place, repetition, tenant) {
                    Err(Failure::Interrupted) => break 'repetitions,
                    turn => turn?,
                }
                done.inc(1);
            }
        }
        done.finish_and_clear();
        Ok(())
    }

    /// Tenants of whom nobody knows anything, or each knows the records of the other half.
    fn new_tenants(&mut self) -> Vec<Tenant> {
        let parts = if self.plan.by_halves { 2 } else { 1 };
        let tenants: Vec<Tenant> = (1..=parts).map(|part| Tenant(self.tenants + part)).collect();
        self.tenants += parts;
        for (part, tenant) in tenants.iter().enumerate() {
            for (number, record) in self.conversations.iter().zip(self.records) {
                if number % tenants.len() != part {
                    self.engine.warm_up(&record.tokens, record.prompt_len, Some(*tenant));
                }
            }
        }
        tenants
    }

    /// One record in all ways.
    fn turn(&mut self, place: usize, repetition: usize, tenant: Tenant) -> Result<(), Failure> {
        let record = &self.records[place];
        self.script.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone_from(&record.tokens);
        let (prompt, output) = record.tokens.split_at(record.prompt_len);
        // Its prompt may be known to everybody, so that ways and repetitions share its rows.
        let plainly = Request { public_prefix: prompt.len(), tenant, ..Request::new(prompt.to_vec()) };
        self.play(Request { tokens_max: Some(1), ..plainly.clone() }, place, None)?;
        let mut laps: Vec<(usize, Lap)> = Vec::with_capacity(self.ways.len());
        let mut passes: Vec<(usize, f64)> = Vec::new();
        for way in order(self.ways.len(), repetition + place) {
            let Way { drafters, order, .. } = &self.ways[way];
            let request = Request {
                tokens_max: Some(output.len()),
                drafters: drafters.clone(),
                order: *order,
                budget: (self.plan.budget)(record),
                draft: self.plan.draft,
                ..plainly.clone()
            };
            laps.push((way, self.play(request, place, Some(&mut passes))?));
        }
        laps.into_iter().for_each(|(way, lap)| self.ways[way].laps[place].push(lap));
        passes.into_iter().for_each(|(rows, seconds)| self.passes.entry(rows).or_default().push(seconds));
        Ok(())
    }

    /// Plays a request to its end. `passes` gets the rows and seconds of passes behind the first.
    fn play(
        &mut self,
        request: Request,
        place: usize,
        mut passes: Option<&mut Vec<(usize, f64)>>,
    ) -> Result<Lap, Failure> {
        let number = self.plan.numbers[place];
        let failed = |why: &str| Failure::Other(format!("record {number}: {why}"));
        let record = &self.records[place];
        let expected = &record.tokens[record.prompt_len..][..request.tokens_max.unwrap_or_default()];
        self.engine.submit(request).map_err(foretoken::Error::from)?;
        let (mut lap, mut written) = (Lap::default(), Vec::with_capacity(expected.len()));
        let mut begun: Option<Instant> = None;
        while !self.engine.is_idle() {
            if !Interrupts::goes_on() {
                return Err(Failure::Interrupted);
            }
            let before = written.len();
            for event in self.engine.step(&mut Race) {
                match event {
                    Event::Tokens { emitted, .. } => written.extend(emitted.iter().map(|emitted| emitted.token)),
                    Event::Finished { reason: FinishReason::Failed(why), .. } => return Err(failed(why)),
                    Event::Finished { stats, .. } => lap.stats = (**stats).clone(),
                    Event::DrafterFailed { message, .. } => {
                        return Err(failed(&format!("a drafter failed: {message}")));
                    }
                    Event::Prompt { .. } | Event::PromptScored { .. } | Event::Drafts { .. } => {}
                }
            }
            let now = Instant::now();
            let (new, times) = (written.len() - before, self.engine.last_step());
            match begun {
                _ if new == 0 => {}
                None => begun = Some(now),
                Some(begun) => {
                    let seconds = times.passes.as_secs_f64();
                    let behind = Sample { tokens: lap.behind.tokens + new, seconds: (now - begun).as_secs_f64() };
                    lap.behind = behind;
                    lap.passes = (lap.passes.0 + 1, lap.passes.1 + seconds);
                    passes.iter_mut().for_each(|passes| passes.push((times.rows, seconds)));
                }
            }
        }
        match written == expected {
            true => Ok(lap),
            false => Err(failed(&format!("expected its {} tokens, found others", expected.len()))),
        }
    }
}
