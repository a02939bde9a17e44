//! The lines of a batch while they are answered: requests go to the engine as there is room, and a line is written once
//! all of its answers are complete.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use foretoken::{Answer, Engine, FinishReason, Request, Stats};
use foretoken_console::failure::{Failure, on_one_line};
use foretoken_console::interrupts::Interrupts;
use foretoken_console::progress::{ProgressBar, bar_with_time_left, say, warn};
use foretoken_server::batch::{Outcome, ParsedRequest, Parser};

use super::lines::{BatchFile, Line, LineFormat};
use crate::line_file::LineFile;

/// How many lines that fail are printed one by one; the others are counted.
const FAILED_PRINTED_MAX: usize = 10;

/// How many unknown fields are named; the others are ignored without a note.
const UNKNOWN_NAMED_MAX: usize = 20;

/// A line whose requests run.
struct OpenLine {
    line: Line,
    request: ParsedRequest,
    answers: Vec<Option<Answer>>,
}

/// The lines that are answered, and the file that has their answers.
pub struct Answering {
    parser: Parser,
    place: String,
    format: LineFormat,
    lines: std::vec::IntoIter<Line>,
    out: LineFile,
    bar: ProgressBar,
    /// Requests of the last line that was parsed, which the engine does not have yet.
    queued: VecDeque<Request>,
    /// How many requests the engine has got.
    submitted: usize,
    /// Lines whose requests run, by the number of their first request.
    open: BTreeMap<usize, OpenLine>,
    /// The unknown fields of bodies that notes have named, each once.
    unknown: BTreeSet<String>,
    /// Lines that were answered.
    pub written: usize,
    /// Lines that were answered by an error.
    failed: usize,
    /// Lines whose requests the engine took and could not answer, such as where a disk fails. They are left out of the
    /// output, so that the next run tries them again.
    unanswered: usize,
    /// Statistics of all answers together.
    pub stats: Stats,
}

impl Answering {
    /// Lines that are to be answered, and where their answers go.
    pub fn new(parser: Parser, file: BatchFile, out: LineFile) -> Self {
        let BatchFile { place, lines, format } = file;
        let bar = bar_with_time_left("lines", lines.len());
        Self {
            parser,
            place,
            format,
            lines: lines.into_iter(),
            out,
            bar,
            queued: VecDeque::new(),
            submitted: 0,
            open: BTreeMap::new(),
            unknown: BTreeSet::new(),
            written: 0,
            failed: 0,
            unanswered: 0,
            stats: Stats::default(),
        }
    }

    /// The next request. Lines that cannot be run are answered by an error.
    ///
    /// # Errors
    /// The answer cannot be written.
    pub fn next_request(&mut self, engine: &Engine) -> Result<Option<Request>, Failure> {
        while self.queued.is_empty() && Interrupts::none_pending() {
            let Some(line) = self.lines.next() else { return Ok(None) };
            match self.parsed(&line, engine) {
                Ok((request, requests)) => {
                    self.note_unknown(&request.unknown);
                    let answers = vec![None; requests.len()];
                    self.open.insert(self.submitted, OpenLine { line, request, answers });
                    self.queued.extend(requests);
                }
                Err(outcome) => self.write(&line, &outcome)?,
            }
        }
        let next = self.queued.pop_front();
        self.submitted += usize::from(next.is_some());
        Ok(next)
    }

    /// The requests of a line, all of which the engine accepts, or else the outcome of the line.
    fn parsed(&self, line: &Line, engine: &Engine) -> Result<(ParsedRequest, Vec<Request>), Outcome> {
        let request = line.request(self.format, &self.place_of(line)).map_err(Outcome::NoRequest)?;
        let (request, requests) = self.parser.parse(&request, line.number as u64).map_err(Outcome::Refused)?;
        match requests.iter().find_map(|request| engine.check(request).err()) {
            Some(error) => Err(request.refused(error)),
            None => Ok((request, requests)),
        }
    }

    fn place_of(&self, line: &Line) -> String {
        format!("{}: line {}", self.place, line.number)
    }

    fn note_unknown(&mut self, fields: &[String]) {
        for field in fields {
            // One more than are named is known, so that a note says so once.
            if self.unknown.len() > UNKNOWN_NAMED_MAX || !self.unknown.insert(field.clone()) {
                continue;
            }
            self.bar.suspend(|| match self.unknown.len() > UNKNOWN_NAMED_MAX {
                true => say("note: further unknown fields are ignored without a note"),
                false => say(format_args!("note: {}: an unknown field is ignored", on_one_line(field))),
            });
        }
    }

    /// Takes the answer to a request. One that was cancelled, or that the engine could not compute, is left out with
    /// its line, which the next run answers.
    ///
    /// # Errors
    /// The line cannot be written.
    pub fn complete(&mut self, number: usize, answer: Answer) -> Result<(), Failure> {
        self.stats.add(&answer.stats);
        let (first, open) = self.open.range_mut(..=number).next_back().expect("each request is one of a line");
        let first = *first;
        open.answers[number - first] = Some(answer);
        if open.answers.iter().any(Option::is_none) {
            return Ok(());
        }
        let OpenLine { line, request, answers } = self.open.remove(&first).expect("it was found");
        let answers: Vec<Answer> = answers.into_iter().flatten().collect();
        if answers.iter().any(|answer| answer.reason == Some(FinishReason::Cancelled)) {
            return Ok(());
        }
        let outcome = request.answered(&answers);
        if !outcome.is_failure_of_machine() {
            return self.write(&line, &outcome);
        }
        self.unanswered += 1;
        self.warn_of(&line, &outcome);
        Ok(())
    }

    fn write(&mut self, line: &Line, outcome: &Outcome) -> Result<(), Failure> {
        self.out.append(&self.parser.output_line(line.number as u64, &line.custom_id, outcome))?;
        self.written += 1;
        self.bar.inc(1);
        self.failed += usize::from(outcome.failure().is_some());
        self.warn_of(line, outcome);
        Ok(())
    }

    /// Prints why a line has no answer, if it has none, unless many were printed.
    fn warn_of(&self, line: &Line, outcome: &Outcome) {
        let Some(why) = outcome.failure() else { return };
        if self.failed + self.unanswered <= FAILED_PRINTED_MAX {
            // An outcome without a request names its line itself.
            let place = match outcome {
                Outcome::NoRequest(_) => String::new(),
                _ => format!("{}: ", self.place_of(line)),
            };
            self.bar.suspend(|| warn(format_args!("error: {}", on_one_line(&format!("{place}{why}")))));
        }
    }

    /// Removes the bar.
    ///
    /// # Errors
    /// Lines were answered by errors, or not at all.
    pub fn end(&self) -> Result<(), Failure> {
        self.bar.finish_and_clear();
        let Self { place, failed, written, unanswered, .. } = self;
        match (failed, unanswered) {
            (0, 0) => Ok(()),
            (_, 1..) => Err(Failure::Other(format!(
                "{place}: expected an answer to every line, found none for {unanswered} and errors for {failed} of {} \
                 lines; the same command tries the {unanswered} again",
                written + unanswered
            ))),
            _ => Err(Failure::Other(format!(
                "{place}: expected an answer to every line, found errors for {failed} of {written} lines"
            ))),
        }
    }
}
