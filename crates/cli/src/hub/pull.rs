//! `foretoken pull`: fetches a model, verifies what is in the cache already, and proposes a draft model for it, or a
//! draft head that can be trained.
//!
//! The first line of standard output is the path, for scripts. The gain of the draft model is that of Theorem 3.8
//! ([`foretoken::theory`]) for an assumed acceptance rate. The cost of a step is a ratio of measured costs, if both
//! models have run together here, else of sizes: a pass of few rows takes about as long as reading its weights.

use std::io::Write;
use std::path::Path;

use clap::Args;
use foretoken::models::Opened;
use foretoken::theory::best_gamma;
use foretoken_console::failure::Failure;
use foretoken_console::hub::{self, DownloadProgress, hub, request};
use foretoken_console::progress::say;
use foretoken_console::terminal::standard_output;
use foretoken_hub::{CachedModel, Hub, HubError, ModelFormat, ModelRequest, Name, readable};

use super::GAMMA_MAX;
use super::family::{self, Proposal};
use super::head_training;

/// Options of `foretoken pull`.
#[derive(Args, Debug)]
#[command(next_help_heading = "Hub")]
pub struct Pull {
    /// The model's name: org/name, org/name:QUANT (a .gguf file), org/name@REVISION
    #[arg(value_name = "NAME", value_parser = hub::name)]
    name: Name,
    /// Which .gguf file of the repository (also -hff)
    #[arg(long, value_name = "FILE")]
    hf_file: Option<String>,
    /// Fetch the draft model that suits it too
    #[arg(long)]
    draft: bool,
}

impl Pull {
    /// Runs the command.
    ///
    /// # Errors
    /// The model does not exist or cannot be fetched.
    pub fn run(&self) -> Result<(), Failure> {
        let hub = hub()?;
        let target = ModelRequest { file: self.hf_file.clone(), ..request(self.name.clone()) };
        let found = fetch(&hub, target)?;
        let mut out = standard_output();
        writeln!(out, "{}", found.path.display())?;
        let files = if found.files == 1 { "1 file".to_string() } else { format!("{} files", found.files) };
        let (bytes, fetched) = (readable(found.bytes), readable(found.fetched_bytes));
        let commit = &found.commit[..12];
        writeln!(out, "{} at {commit}: {files}, {bytes} ({fetched} of them fetched just now)", self.name)?;
        let opened = Opened::at(&found.path).ok();
        match &opened {
            Some(opened) => writeln!(out, "family: {}", opened.spec.family)?,
            None => say(format_args!("note: {}: not a network that can be run: see foretoken inspect", self.name)),
        }
        out.flush()?;
        let is_folder = found.path.is_dir();
        let kind = if is_folder { ModelFormat::Safetensors } else { ModelFormat::Gguf(String::new()) };
        let (option, draft_option) = if is_folder { ("-m", "-md") } else { ("-hf", "-hfd") };
        let billions = opened.as_ref().map(|opened| opened.checkpoint.parameters() as f64 / 1e9);
        let proposal = family::proposal(&self.name, &kind, billions);
        if let Some(proposal) = &proposal {
            let draft = request(proposal.name.clone());
            let draft = if self.draft { Some(fetch(&hub, draft)?) } else { hub.cached(&draft) };
            writeln!(out, "{}", self.describe_draft(&hub, &found, proposal, draft.as_ref()))?;
            writeln!(out, "  foretoken chat {option} {} {draft_option} {}", self.name, proposal.name)?;
        } else {
            writeln!(out, "draft model: none is known for it")?;
        }
        if proposal.is_none_or(|proposal| proposal.is_translated) {
            let head =
                opened.and_then(|opened| head_training::lines(&opened, option, &self.name.to_string(), &found.path));
            head.iter().try_for_each(|lines| writeln!(out, "{lines}"))?;
        }
        Ok(out.flush()?)
    }

    /// A line about a draft model: where it is, its size, and its expected gain.
    fn describe_draft(
        &self,
        hub: &Hub,
        target: &CachedModel,
        proposal: &Proposal,
        draft: Option<&CachedModel>,
    ) -> String {
        let request = request(proposal.name.clone());
        let known_bytes = draft.map(|draft| draft.bytes).or_else(|| hub.size(&request).ok()).filter(|bytes| *bytes > 0);
        // Without a known size, the same bytes per weight as the target.
        let bytes = known_bytes.unwrap_or((proposal.share * target.bytes as f64) as u64);
        let location = draft.map(|draft| format!("{}, ", draft.path.display())).unwrap_or_default();
        let measured = draft.and_then(|draft| measured(&target.path, &draft.path));
        let (cost, source) = match measured {
            Some(cost) => (cost, "as measured here"),
            None => (bytes as f64 / target.bytes.max(1) as f64, "by size"),
        };
        let best = best_gamma(proposal.acceptance, cost, GAMMA_MAX);
        let percent = 100.0 * proposal.acceptance;
        let assumed = format!("if {percent:.0} % of its tokens are accepted, which is assumed");
        let cost = format!("a step costs {cost:.3} passes {source}");
        let speed = match best.speedup > 1.0 {
            true => {
                format!("about {:.1} times as fast with {} tokens a pass, {assumed} ({cost})", best.speedup, best.gamma)
            }
            false => format!("not faster, even {assumed} ({cost})"),
        };
        let vocabulary =
            if proposal.is_translated { "another vocabulary, drafts are translated" } else { "the same vocabulary" };
        format!("draft model: {} ({location}{}, {vocabulary}): {speed}", proposal.name, readable(bytes))
    }
}

/// Fetches a model, and verifies all its files in the cache.
fn fetch(hub: &Hub, request: ModelRequest<'_>) -> Result<CachedModel, Failure> {
    let progress_lines = DownloadProgress::new(&request.name);
    let found = hub.fetch(&ModelRequest { verify: true, ..request }, &|event| progress_lines.on_event(event));
    let found = found.map_err(without_network)?;
    progress_lines.end();
    Ok(found)
}

/// The error of fetching; without a network, with a way that needs none.
fn without_network(error: HubError) -> Failure {
    match error {
        error @ HubError::NoNetwork(_) => {
            Failure::Other(format!("{error}; a model that lies on this machine needs no network: -m FILE.gguf"))
        }
        other => other.into(),
    }
}

/// The cost of a draft step over that of a pass of the target, if both were measured.
fn measured(target: &Path, draft: &Path) -> Option<f64> {
    let (pass_s, step_s) = foretoken::measured_costs(target, draft)?;
    Some(step_s / pass_s)
}
