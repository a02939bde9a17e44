//! `foretoken bench serve`: the speed of a server, compared with its engine alone.
//!
//! Several clients run at a time, each of which sends its next request when the last one has ended. In one run these
//! are measured one after another: clients of the engine itself, on threads of this program; clients of a server of
//! this program, over the loopback device; and clients of other servers with OpenAI's API, if they are named. Clients
//! do as little as possible, since they share the machine with what they measure: they parse only the first text and
//! the count at the end. The speed-up of drafts is measured by `bench generate`.

mod client;

use std::io::Write;

use clap::Args;
use foretoken::settings::{Limit, SamplingSettings, SpeculationSettings};
use foretoken::{Generator, Prompt, Settings, SpecType};
use foretoken_console::failure::Failure;
use foretoken_console::opening::tell_notes;
use foretoken_console::options::{DraftingOptions, ModelOptions};
use foretoken_console::progress::Loading;
use foretoken_console::prompts::{ListOptions, PromptOptions};
use foretoken_console::terminal::standard_output;
use foretoken_console::values;
use foretoken_server::{Server, ServerError, ServerSettings};
use serde_json::json;

use super::generate::interval::percentile;
use client::{ClientTimings, Workload, no_thread, over_http, without_server};

const AFTER_HELP: &str = "\
Each line is a number of concurrent clients, with the median of all repetitions. Requests are isolated from each
other: they share no cached rows and no learned texts (of other servers by cache_prompt false).

  clients      how many
  engine       tokens/s of clients of the engine itself: no server, no connection
  server       tokens/s of clients of this program's server, over the loopback device
  of engine    the second over the first, the median of repetitions (least to most)
  first token  milliseconds from a request to the first text: median, 95th percentile
  NAME         tokens/s of another server; how many times as fast this one is; its first token

--json prints one object a line instead.";

/// Options of `foretoken bench serve`.
#[derive(Args, Debug)]
#[command(next_help_heading = "Measurement")]
#[command(after_long_help = AFTER_HELP)]
pub struct ServeBench {
    /// Concurrent clients
    #[arg(long = "parallel", value_name = "N,..", value_delimiter = ',', default_value = "1,4,16",
        value_parser = values::texts, allow_negative_numbers = true)]
    clients: Vec<usize>,
    /// Requests of each client, one after another
    #[arg(long, value_name = "N", default_value = "4", value_parser = values::one_up, allow_negative_numbers = true)]
    texts: usize,
    /// Another server to measure: NAME=http://HOST:PORT; can be repeated
    #[arg(long, value_name = "NAME=URL", value_parser = named_url)]
    url: Vec<(String, String)>,
    /// Tokens of each text
    #[arg(short, long, visible_alias = "predict", value_name = "N", default_value = "64",
        value_parser = values::one_up, allow_negative_numbers = true)]
    n_predict: usize,
    /// Temperature
    #[arg(long, value_name = "T", default_value = "0", value_parser = values::zero_up, allow_negative_numbers = true)]
    temp: f32,
    /// Repetitions
    #[arg(long, value_name = "N", default_value = "5", value_parser = values::one_up, allow_negative_numbers = true)]
    repeat: usize,
    /// Print one JSON object a line (see --help)
    #[arg(long)]
    json: bool,
    /// Drafters, as for serve
    #[arg(long, help_heading = "Speculation", value_name = "KIND,..", value_parser = str::parse::<SpecType>)]
    spec_type: Option<SpecType>,
    #[command(flatten)]
    prompts: PromptOptions,
    #[command(flatten)]
    list: ListOptions,
    #[command(flatten)]
    model: ModelOptions,
    #[command(flatten)]
    drafting: DraftingOptions,
}

/// A server and its name.
fn named_url(word: &str) -> Result<(String, String), String> {
    let expected = "expected NAME=http://HOST:PORT";
    let (name, url) = word.split_once('=').ok_or(expected)?;
    let is_good = !name.is_empty() && url.len() > "http://".len() && url.starts_with("http://");
    if is_good { Ok((name.to_string(), url.trim_end_matches('/').to_string())) } else { Err(expected.to_string()) }
}

/// The measurements with one number of clients, by repetition.
#[derive(Default)]
struct Row {
    engine: Vec<ClientTimings>,
    server: Vec<ClientTimings>,
    others: Vec<Vec<ClientTimings>>,
}

impl ServeBench {
    /// Runs the command.
    ///
    /// # Errors
    /// The model cannot be used, or a server does not answer.
    pub fn run(&self) -> Result<(), Failure> {
        let sampling = SamplingSettings {
            temperature: Some(self.temp),
            tokens_max: Limit(Some(self.n_predict)),
            ignore_eos: true,
            seed: Some(1),
            ..SamplingSettings::default()
        };
        let speculation =
            SpeculationSettings { spec_type: self.spec_type.clone().unwrap_or_default(), ..self.drafting.settings()? };
        let parallel = self.clients.iter().copied().max().unwrap_or(1);
        let settings = Settings { model: self.model.settings()?, sampling, speculation, parallel };
        let prompts = self.prompts.read(self.list, false)?;
        let text = |prompt: Prompt| {
            let found = match prompt {
                Prompt::Text(text) => return Ok(text),
                Prompt::Ids(_) => "token ids",
                Prompt::Chat(_) => "a conversation",
            };
            Err(Failure::Usage(format!("bench serve: expected prompts that are texts, found {found}")))
        };
        let prompts = prompts.into_iter().map(|listed| text(listed.prompt));
        let prompts = prompts.collect::<Result<Vec<String>, Failure>>()?;
        let mut loading = Loading::default();
        let mut generator = Server::open(&settings, &mut |opening| loading.on_event(opening))?;
        drop(loading);
        tell_notes(&generator);
        let mut out = standard_output();
        if !self.json {
            writeln!(out, "{}", self.title())?;
        }
        for clients in &self.clients {
            let workload = |repetition: usize| Workload {
                clients: *clients,
                texts: self.texts,
                prompts: &prompts,
                tokens: self.n_predict,
                temperature: self.temp,
                // Each repetition has other seeds, which are the same for engine and servers.
                seed: 1000 * repetition as u64,
            };
            let mut row = Row { others: vec![Vec::new(); self.url.len()], ..Row::default() };
            for repetition in 0..=self.repeat {
                let figures;
                (generator, figures) = self.repetition(generator, &settings, &workload(repetition))?;
                // The first repetition is a warm-up.
                if repetition > 0 {
                    let mut figures = figures.into_iter();
                    row.engine.extend(figures.next());
                    row.server.extend(figures.next());
                    row.others.iter_mut().zip(figures).for_each(|(other, figures)| other.push(figures));
                }
            }
            match self.json {
                true => writeln!(out, "{}", self.object(*clients, &row))?,
                false => writeln!(out, "{}", self.line(*clients, &row))?,
            }
            out.flush()?;
        }
        Ok(())
    }

    /// Measures the engine, the server and the other servers once.
    fn repetition(
        &self,
        generator: Generator,
        settings: &Settings,
        workload: &Workload<'_>,
    ) -> Result<(Generator, Vec<ClientTimings>), Failure> {
        let (generator, engine) = without_server(generator, workload)?;
        let server = ServerSettings { port: 0, ..ServerSettings::default() };
        let server = Server::bind(&server, settings, generator).map_err(failure)?;
        let url = format!("http://{}", server.address());
        let (end, ended) = foretoken_server::stopper();
        let (generators, served) = std::thread::scope(|scope| {
            let running = std::thread::Builder::new().spawn_scoped(scope, || server.run(ended));
            let running = running.map_err(|error| no_thread(&error))?;
            let served = over_http(&url, workload);
            end();
            Ok::<_, Failure>((running.join().expect("a server does not panic"), served))
        })?;
        let mut figures = vec![engine, served?];
        for (_, url) in &self.url {
            figures.push(over_http(url, workload)?);
        }
        // There is one model.
        Ok((generators.map_err(failure)?.remove(0), figures))
    }

    fn title(&self) -> String {
        let mut title = format!(
            "{} texts of {} tokens a client\n\nclients  engine  server  of engine            first token   95 %",
            self.texts, self.n_predict
        );
        for (name, _) in &self.url {
            title.push_str(&format!("  {name:>9}  times as fast        first token   95 %"));
        }
        title
    }

    fn line(&self, clients: usize, row: &Row) -> String {
        let (engine, server) = (median(&row.engine), median(&row.server));
        let [ratio, least, most] = ratios(&row.server, &row.engine);
        let [first, late] = first_text_ms(&row.server);
        let of_engine = format!("{ratio:.3} ({least:.3} to {most:.3})");
        let mut line = format!("{clients:>7}  {engine:>6.1}  {server:>6.1}  {of_engine}  {first:>11.1}  {late:>5.1}");
        for other in &row.others {
            let [ratio, least, most] = ratios(&row.server, other);
            let [first, late] = first_text_ms(other);
            let speed = median(other);
            line.push_str(&format!("  {speed:>9.1}  {ratio:.2} ({least:.2} to {most:.2})  {first:>11.1}  {late:>5.1}"));
        }
        line
    }

    fn object(&self, clients: usize, row: &Row) -> serde_json::Value {
        let figures = |all: &[ClientTimings]| {
            let [first, late] = first_text_ms(all);
            json!({ "tokens_per_second": median(all), "first_token_ms": first, "first_token_ms_p95": late })
        };
        let others = self.url.iter().zip(&row.others).map(|((name, _), other)| {
            let mut object = figures(other);
            object["times_as_fast"] = json!(ratios(&row.server, other));
            (name.clone(), object)
        });
        json!({
            "clients": clients,
            "texts": self.texts,
            "tokens": self.n_predict,
            "engine": figures(&row.engine),
            "server": figures(&row.server),
            "of_engine": ratios(&row.server, &row.engine),
            "others": others.collect::<serde_json::Map<String, serde_json::Value>>(),
        })
    }
}

/// The median; of an even count the upper of the two in the middle.
fn upper_median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or_default()
}

/// The median speed.
fn median(all: &[ClientTimings]) -> f64 {
    upper_median(all.iter().map(ClientTimings::tokens_per_second).collect())
}

/// The ratios of speeds, repetition by repetition: median, least and most.
fn ratios(these: &[ClientTimings], those: &[ClientTimings]) -> [f64; 3] {
    let each = these.iter().zip(those).map(|(this, that)| this.tokens_per_second() / that.tokens_per_second());
    let each: Vec<f64> = each.collect();
    let [least, most] = [f64::min, f64::max].map(|pick| each.iter().copied().reduce(pick).unwrap_or_default());
    [upper_median(each), least, most]
}

/// Milliseconds to the first text: the median, and the 95th percentile.
fn first_text_ms(all: &[ClientTimings]) -> [f64; 2] {
    let each: Vec<f64> = all.iter().flat_map(|figures| figures.first_ms.iter().copied()).collect();
    [0.5, 0.95].map(|part| percentile(&each, part))
}

/// The server's settings are this command's own, so their errors are no errors of usage.
fn failure(error: ServerError) -> Failure {
    match error {
        ServerError::Library(error) => error.into(),
        ServerError::System(message) | ServerError::Setting(message) => Failure::Other(message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_named() {
        assert_eq!(named_url("llama=http://x:1/"), Ok(("llama".to_string(), "http://x:1".to_string())));
        for wrong in ["", "llama", "=http://x", "llama=https://x", "llama=http://"] {
            assert!(named_url(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn figures_of_repetitions_are_paired() {
        let figures = |seconds| ClientTimings { tokens: 100, seconds, first_ms: vec![seconds] };
        let (these, those) = ([figures(1.0), figures(2.0), figures(4.0)], [figures(2.0), figures(2.0), figures(2.0)]);
        assert_eq!(ratios(&these, &those), [1.0, 0.5, 2.0]);
        assert_eq!((median(&these), first_text_ms(&these)), (50.0, [2.0, 4.0]));
    }
}
