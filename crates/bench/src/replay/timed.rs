//! Times records: plain decoding and every candidate alternate on one engine, record by record.
//!
//! The prompt of a record is computed once for all variants, and is not timed. No variant always comes first, or always
//! after the same one. Every repetition, and every half of the records where halves learn from each other, is a tenant
//! of its own, so drafters do not know texts that they learned in another. The engine keeps the acceptance of each
//! drafter across them. Results are printed by [`super::table`].

use std::collections::BTreeMap;
use std::time::Instant;

use foretoken::drafters::DrafterInputs;
use foretoken::store::Store;
use foretoken_console::failure::Failure;
use foretoken_console::interrupts::Interrupts;
use foretoken_console::progress::bar;
use foretoken_console::records::Record;
use foretoken_engine::{BudgetKind, Engine, Event, FinishReason, Order, Race, Request, Stats};
use foretoken_model::Executor;
use foretoken_speculation::{DraftSettings, Tenant};

use super::candidate::Candidate;
use super::play::{RecordedTokens, conversations};
use crate::generate::interval::Sample;
use crate::generate::order::order;

/// The times of one record in one repetition.
#[derive(Clone, Debug, Default)]
pub struct RecordTiming {
    /// Tokens after the first pass, and their time.
    pub after_first: Sample,
    /// Passes after the first, and the network's time for them.
    pub passes: (usize, f64),
    /// Statistics of all passes.
    pub stats: Stats,
}

/// A variant of decoding: plain, or a candidate.
pub struct Variant {
    /// Its name on the command line, or `plain`.
    pub name: String,
    /// Numbers of its drafters.
    drafters: Vec<u8>,
    order: Order,
    /// For each record the times of its repetitions.
    pub timings: Vec<Vec<RecordTiming>>,
}

impl Variant {
    fn new(name: String, drafters: Vec<u8>, order: Order, records: usize) -> Self {
        Self { name, drafters, order, timings: vec![Vec::new(); records] }
    }
}

/// How records are replayed, and for how long.
pub struct Plan<'a> {
    /// The budget of a record.
    pub budget: &'a dyn Fn(&Record) -> BudgetKind,
    /// The draft settings of requests.
    pub draft: DraftSettings,
    /// Whether the budget weighs costs; they are measured before the first record.
    pub weighs: bool,
    /// Whether halves of the records learn from each other.
    pub by_halves: bool,
    /// The number of each record, for messages.
    pub numbers: &'a [usize],
    /// The most repetitions of each record.
    pub repeat: usize,
    /// No further record begins after this many seconds.
    pub seconds: Option<f32>,
}

/// An engine on which records are timed, and the results.
pub struct TimedReplay<'a> {
    engine: Engine,
    recorded: RecordedTokens,
    plan: Plan<'a>,
    records: &'a [Record],
    /// The conversation of each record.
    conversations: Vec<usize>,
    /// Plain decoding, and then every candidate.
    pub variants: Vec<Variant>,
    /// Seconds of passes by their rows, except those of prompts.
    pub passes: BTreeMap<usize, Vec<f64>>,
    tenants: u64,
}

impl<'a> TimedReplay<'a> {
    /// An engine with a network that returns the recorded tokens, and with the drafters of all candidates.
    ///
    /// # Errors
    /// A file that a drafter needs is not given.
    pub fn new(
        (executor, recorded): (Box<dyn Executor>, RecordedTokens),
        context: usize,
        (candidates, inputs): (&[Candidate], DrafterInputs<'_>),
        records: &'a [Record],
        plan: Plan<'a>,
    ) -> Result<Self, Failure> {
        let mut engine = Engine::new(executor, 1, context);
        let mut variants = vec![Variant::new("plain".to_string(), Vec::new(), Order::Given, records.len())];
        for candidate in candidates {
            let drafters = candidate.drafters(inputs)?;
            let numbers = drafters.into_iter().map(|drafter| engine.add_drafter(drafter)).collect();
            variants.push(Variant::new(candidate.name(), numbers, candidate.order(), records.len()));
        }
        let conversations = conversations(records);
        let passes = BTreeMap::new();
        Ok(Self { engine, recorded, plan, records, conversations, variants, passes, tenants: 0 })
    }

    /// Makes all drafters learn the public texts of a store.
    pub fn learn_all(&mut self, store: &Store) {
        // Texts of other tenants are skipped.
        let whose = |tenant: &Option<Tenant>| tenant.is_none_or(|tenant| tenant == Tenant::default());
        for text in store.documents().filter(|text| whose(&text.tenant)) {
            self.engine.warm_up(&text.tokens, text.prompt_len, None);
        }
    }

    /// Replays all records in all variants; after Ctrl-C the results have those records that all variants completed.
    ///
    /// # Errors
    /// A request fails, or a drafter fails.
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
                match self.replay(place, repetition, tenant) {
                    Err(Failure::Interrupted) => break 'repetitions,
                    replayed => replayed?,
                }
                done.inc(1);
            }
        }
        done.finish_and_clear();
        Ok(())
    }

    /// New tenants: one, or one for each half, whose drafters have learned the other half.
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

    /// Replays one record in all variants.
    fn replay(&mut self, place: usize, repetition: usize, tenant: Tenant) -> Result<(), Failure> {
        let record = &self.records[place];
        self.recorded.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone_from(&record.tokens);
        let (prompt, output) = record.tokens.split_at(record.prompt_len);
        // Its prompt is public, so that variants and repetitions share its rows.
        let plainly = Request { public_prefix: prompt.len(), tenant, ..Request::new(prompt.to_vec()) };
        self.play(Request { tokens_max: Some(1), ..plainly.clone() }, place, None)?;
        let mut timings: Vec<(usize, RecordTiming)> = Vec::with_capacity(self.variants.len());
        let mut passes: Vec<(usize, f64)> = Vec::new();
        for variant in order(self.variants.len(), repetition + place) {
            let Variant { drafters, order, .. } = &self.variants[variant];
            let request = Request {
                tokens_max: Some(output.len()),
                drafters: drafters.clone(),
                order: *order,
                budget: (self.plan.budget)(record),
                draft: self.plan.draft,
                ..plainly.clone()
            };
            timings.push((variant, self.play(request, place, Some(&mut passes))?));
        }
        timings.into_iter().for_each(|(variant, timing)| self.variants[variant].timings[place].push(timing));
        passes.into_iter().for_each(|(rows, seconds)| self.passes.entry(rows).or_default().push(seconds));
        Ok(())
    }

    /// Runs a request to its end. `passes` gets the rows and seconds of passes after the first.
    fn play(
        &mut self,
        request: Request,
        place: usize,
        mut passes: Option<&mut Vec<(usize, f64)>>,
    ) -> Result<RecordTiming, Failure> {
        let number = self.plan.numbers[place];
        let failed = |why: &str| Failure::Other(format!("record {number}: {why}"));
        let record = &self.records[place];
        let expected = &record.tokens[record.prompt_len..][..request.tokens_max.unwrap_or_default()];
        self.engine.submit(request).map_err(foretoken::Error::from)?;
        let (mut timing, mut written) = (RecordTiming::default(), Vec::with_capacity(expected.len()));
        let mut first_pass_ended: Option<Instant> = None;
        while !self.engine.is_idle() {
            if !Interrupts::none_pending() {
                return Err(Failure::Interrupted);
            }
            let before = written.len();
            for event in self.engine.step(&mut Race) {
                match event {
                    Event::Tokens { emitted, .. } => written.extend(emitted.iter().map(|emitted| emitted.token)),
                    Event::Finished { reason: FinishReason::Failed(why), .. } => return Err(failed(why)),
                    Event::Finished { stats, .. } => timing.stats = (**stats).clone(),
                    Event::DrafterFailed { message, .. } => {
                        return Err(failed(&format!("a drafter failed: {message}")));
                    }
                    Event::Prompt { .. } | Event::PromptScored { .. } | Event::Drafts { .. } | Event::Beams { .. } => {}
                }
            }
            let now = Instant::now();
            let (new, times) = (written.len() - before, self.engine.last_step());
            match first_pass_ended {
                _ if new == 0 => {}
                None => first_pass_ended = Some(now),
                Some(first_pass_ended) => {
                    let seconds = times.passes.as_secs_f64();
                    let after_first = Sample {
                        tokens: timing.after_first.tokens + new,
                        seconds: (now - first_pass_ended).as_secs_f64(),
                    };
                    timing.after_first = after_first;
                    timing.passes = (timing.passes.0 + 1, timing.passes.1 + seconds);
                    passes.iter_mut().for_each(|passes| passes.push((times.rows, seconds)));
                }
            }
        }
        match written == expected {
            true => Ok(timing),
            false => Err(failed(&format!("expected its {} tokens, found others", expected.len()))),
        }
    }
}
