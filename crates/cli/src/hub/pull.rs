//! `foretoken pull`: fetches a model, checks what lies there already, and proposes a draft model for it, or a head that
//! can be trained.
//!
//! The first line of standard output is the path, for scripts. What the draft model would gain is estimated from what
//! passes cost, if both models have run together here, else from sizes: a pass of few rows takes about as long as its
//! weights take to be read. Left out: quantizing, and choosing between quantizations.

use std::io::Write;
use std::path::Path;

use clap::Args;
use foretoken_console::failure::Failure;
use foretoken_console::hub::{self, Shown, asked, hub};
use foretoken_console::progress::say;
use foretoken_hub::{Asked, Found, Hub, HubError, Kind, Name, readable};

use super::estimate::{ACCEPTANCE, best};
use super::evening;
use super::family::{self, Proposal};

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
    /// The model is not there or cannot be fetched.
    pub fn run(&self) -> Result<(), Failure> {
        let hub = hub()?;
        let target = Asked { file: self.hf_file.clone(), ..asked(self.name.clone()) };
        let found = fetch(&hub, target)?;
        let mut out = std::io::stdout();
        writeln!(out, "{}", found.path.display())?;
        let files = if found.files == 1 { "1 file".to_string() } else { format!("{} files", found.files) };
        let (bytes, fetched) = (readable(found.bytes), readable(found.fetched_bytes));
        let commit = &found.commit[..12];
        writeln!(out, "{} at {commit}: {files}, {bytes} ({fetched} of them fetched just now)", self.name)?;
        let opened = family::opened(&found.path);
        match &opened {
            Some(opened) => writeln!(out, "family: {}", opened.spec.family)?,
            None => say(format_args!("note: {}: not a network that can be run: see foretoken inspect", self.name)),
        }
        out.flush()?;
        let is_folder = found.path.is_dir();
        let kind = if is_folder { Kind::Safetensors } else { Kind::Gguf(String::new()) };
        let (way, way_of_draft) = if is_folder { ("-m", "-md") } else { ("-hf", "-hfd") };
        let Some(proposal) = family::proposal(&self.name, &kind) else {
            writeln!(out, "draft model: none is known for it")?;
            let head = opened.and_then(|opened| evening::lines(&opened, way, &self.name.to_string(), &found.path));
            head.iter().try_for_each(|lines| writeln!(out, "{lines}"))?;
            return Ok(out.flush()?);
        };
        let draft = asked(proposal.name.clone());
        let draft = if self.draft { Some(fetch(&hub, draft)?) } else { hub.cached(&draft) };
        writeln!(out, "{}", self.proposed(&hub, &found, &proposal, draft.as_ref()))?;
        writeln!(out, "  foretoken chat {way} {} {way_of_draft} {}", self.name, proposal.name)?;
        Ok(out.flush()?)
    }

    /// What there is to say of a draft model.
    fn proposed(&self, hub: &Hub, target: &Found, proposal: &Proposal, draft: Option<&Found>) -> String {
        let asked = asked(proposal.name.clone());
        let said = draft.map(|draft| draft.bytes).or_else(|| hub.size(&asked).ok()).filter(|bytes| *bytes > 0);
        // Where nobody says, the same bytes a weight.
        let bytes = said.unwrap_or((proposal.share * target.bytes as f64) as u64);
        let here = draft.map(|draft| format!("{}, ", draft.path.display())).unwrap_or_default();
        let measured = draft.and_then(|draft| measured(&target.path, &draft.path));
        let (cost, how) = match measured {
            Some(cost) => (cost, "as measured here"),
            None => (bytes as f64 / target.bytes.max(1) as f64, "by size"),
        };
        let gain = best(ACCEPTANCE, cost);
        let percent = 100.0 * ACCEPTANCE;
        let assumed = format!("if {percent:.0} % of its tokens are accepted, which is assumed");
        let cost = format!("a step costs {cost:.3} passes {how}");
        let worth = match gain.gain > 1.0 {
            true => {
                format!("about {:.1} times as fast with {} tokens a pass, {assumed} ({cost})", gain.gain, gain.gamma)
            }
            false => format!("not faster, even {assumed} ({cost})"),
        };
        format!("draft model: {} ({here}{}, the same vocabulary): {worth}", proposal.name, readable(bytes))
    }
}

/// Fetches a model, with all that lies there read and checked.
fn fetch(hub: &Hub, asked: Asked<'_>) -> Result<Found, Failure> {
    let shown = Shown::new(&asked.name);
    let found = hub.fetch(&Asked { verify: true, ..asked }, &|event| shown.hear(event));
    let found = found.map_err(without_network)?;
    shown.end();
    Ok(found)
}

/// Why nothing was fetched; where that is for want of a network, with what needs none.
fn without_network(error: HubError) -> Failure {
    match error {
        error @ HubError::NoNetwork(_) => {
            Failure::Other(format!("{error}; a model that lies on this machine needs no network: -m FILE.gguf"))
        }
        other => other.into(),
    }
}

/// What a draft step costs over what a pass of the target costs, if runs of both have found it out.
fn measured(target: &Path, draft: &Path) -> Option<f64> {
    let (pass_s, step_s) = foretoken::measured_costs(target, draft)?;
    Some(step_s / pass_s)
}
