//! Measures passes of ranks in one process over slow links, and compares them with the cost model of `pass_time.rs`.
//!
//! `cargo run --release -p foretoken-ranks --example links -- [MODEL [RANKS [PASSES]]]`; the model is the demo by
//! default. Every rank computes with one thread, so a machine with fewer cores than ranks divides the arithmetic by its
//! cores: the time without links is measured, and the model has to predict what links add to it. Waits end awake, so
//! whatever else runs on the machine makes medians longer; the least times are those of a quiet moment, and both are
//! compared with the same times without links. `tests/links` measures processes over links of the system's.

use std::time::{Duration, Instant};

use foretoken::models::{Opened, Options, built_in};
use foretoken::{CacheType, Executor};
use foretoken_model::{Batch, PageId, PageTable, Sent, Span};
use foretoken_ranks::in_process::connect;
use foretoken_ranks::pass_time::{Link, PassTime};
use foretoken_ranks::{Communicator, Greeting, Role, Slow, join};

const LIMIT: Duration = Duration::from_secs(60);

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let name = words.first().cloned().unwrap_or_else(|| built_in().first().expect("a built-in model").to_string());
    let number = |at: usize, default| words.get(at).map_or(default, |word| word.parse().expect("a number"));
    let (ranks, passes) = (number(1, 2), number(2, 20));
    println!("{name} on {ranks} ranks, the least and the median of {passes} passes, measured / predicted");
    println!("rows  latency us  Gb/s  messages  KB sent     least ms  ratio    median ms  ratio");
    for rows in [1, 8] {
        let fast = connect(ranks);
        let (base, sent) = measured(fast, &name, rows, passes);
        let pass = base.map(|repeated| PassTime { repeated, ..PassTime::default() }.with_sent(sent, ranks));
        print_line(rows, [f64::NAN, f64::INFINITY], sent, base, base);
        for (latency, gigabits) in [(20e-6, 100.0), (50e-6, 10.0), (50e-6, 1.0), (200e-6, 1.0), (1e-3, 0.1)] {
            let link = Link::gigabits(gigabits, latency);
            let slow = |inner| Slow { inner, latency: Duration::from_secs_f64(latency), rate: link.rate };
            let (seconds, sent) = measured(connect(ranks).into_iter().map(slow).collect(), &name, rows, passes);
            let predicted = pass.map(|pass| pass.seconds(ranks, link));
            print_line(rows, [latency, gigabits], sent, seconds, predicted);
        }
    }
}

/// Prints the least and the median of measured seconds, each with its ratio to the predicted ones.
fn print_line(rows: usize, [latency, gigabits]: [f64; 2], sent: Sent, measured: [f64; 2], predicted: [f64; 2]) {
    let link = format!("{rows:>4}  {:>10.0}  {gigabits:>4}", 1e6 * latency);
    let kilobytes = sent.bytes as f64 / 1e3;
    let [least, median] = measured.map(|seconds| 1e3 * seconds);
    let [of_least, of_median] = [0, 1].map(|at| measured[at] / predicted[at]);
    let times = format!("{least:>11.3}  {of_least:>5.2}  {median:>11.3}  {of_median:>5.2}");
    println!("{link}  {:>8}  {kilobytes:>7.1}  {times}", sent.messages);
}

/// The least and the median of the seconds of a pass of `rows` rows on ranks with these ends, and what rank 0 sent for
/// one.
fn measured<C: Communicator + 'static>(ends: Vec<C>, name: &str, rows: usize, passes: usize) -> ([f64; 2], Sent) {
    std::thread::scope(|scope| {
        let join = |end| join(Box::new(end), LIMIT, &Greeting::new(Vec::new())).expect("the ranks are alike");
        let mut ends = ends.into_iter();
        let first = ends.next().expect("a rank");
        for end in ends {
            scope.spawn(move || join(end).leader().expect("all ranks answer"));
        }
        let Role::Leader(leader) = join(first) else { unreachable!("rank 0 leads") };
        let options = Options::for_positions(128, 1).with_cache(CacheType::F32);
        let opened = Opened::named(name).expect("the model can be opened");
        let mut executor = opened.load(&leader, options, &mut |_, _| ()).expect("the model can be loaded").executor;
        let mut seconds: Vec<f64> = (0..=passes).map(|_| pass(&mut *executor, rows)).skip(1).collect();
        seconds.sort_by(f64::total_cmp);
        let sent = executor.sent();
        drop(executor);
        leader.stop().expect("all ranks answer");
        ([seconds[0], seconds[seconds.len() / 2]], sent)
    })
}

/// Seconds of a pass of `rows` rows.
fn pass(executor: &mut dyn Executor, rows: usize) -> f64 {
    let tables: Vec<PageTable> = executor.capacity().groups.iter().map(|_| vec![PageId(0)]).collect();
    let (tokens, wanted): (Vec<u32>, Vec<u32>) = ((0..rows as u32).collect(), (0..rows as u32).collect());
    let span = Span { tables: &tables, tokens: &tokens, wanted: &wanted, ..Span::default() };
    let since = Instant::now();
    executor.forward(&Batch { spans: &[span], hidden_layers: &[] }).expect("all ranks answer");
    since.elapsed().as_secs_f64()
}
