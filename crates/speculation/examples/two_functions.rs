//! Speculation without a language model: a slow function and a fast one that is nearly right.
//!
//! Leviathan et al. (2023, section 6) suggest their method for any two slow functions f and g where the input of g is
//! drawn from a law that f computes: guess that input from a fast approximation of f, and run both at once. A chain of
//! steps repeats this: g is the f of the next step.
//!
//! The example is the queue of a bakery. Every minute up to four customers come and some are served; the tokens are the
//! numbers of people waiting. The exact law of the next minute is a sum over all the ways in which people may come and
//! be served; the approximation says that the number hardly changes. A *round* computes the slow law after several
//! tokens, which several machines can do at the same time, so the time of a simulation is its rounds. Plain simulation
//! needs one round per minute.
//!
//! ```text
//! cargo run -p foretoken-speculation --example two_functions
//! ```

use foretoken_speculation::{Address, Chance, DraftTree, Law, NodeId, Pass, Promise, Proposal, Token, verify};

const ROOM: i64 = 12;
const MINUTES: usize = 20_000;
const SEED: u64 = 7;

fn choose(n: i64, k: i64) -> f64 {
    (0..k).map(|i| (n - i) as f64 / (i + 1) as f64).product()
}

/// The probability of k successes in n trials.
fn binomial(n: i64, k: i64, p: f64) -> f64 {
    choose(n, k) * p.powi(k as i32) * (1.0 - p).powi((n - k) as i32)
}

/// p, the slow function: who comes and who is served, every combination of both.
fn exact(waiting: Token) -> Law {
    let waiting = i64::from(waiting);
    let mut weights = vec![0.0; ROOM as usize + 1];
    for come in 0..=4 {
        for served in 0..=(waiting + come).min(3) {
            let next = (waiting + come - served).min(ROOM);
            weights[next as usize] += binomial(4, come, 0.2) * binomial((waiting + come).min(3), served, 0.4);
        }
    }
    Law::from_pairs((0..).zip(weights))
}

/// q, the fast function: the number hardly changes.
fn approximate(waiting: Token) -> Law {
    let waiting = i64::from(waiting);
    let near = [(-2, 0.13), (-1, 0.28), (0, 0.34), (1, 0.19), (2, 0.06)].map(|(step, q)| (waiting + step, q));
    Law::from_pairs(near.into_iter().filter(|(next, _)| (0..=ROOM).contains(next)).map(|(n, q)| (n as Token, q)))
}

/// A source of chance whose noise is a function of the address, so that drafting more or less never shifts it.
struct Hash;

impl Hash {
    /// The noise of a token at an address: a number strictly between 0 and 1.
    fn uniform(address: Address, token: Token) -> f64 {
        let Address { seed, request, pass, position, purpose, index } = address;
        let words = [request, pass, position, purpose as u64, u64::from(index), u64::from(token)];
        let hash = words.iter().fold(seed, |hash, word| {
            let hash = (hash ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            (hash ^ (hash >> 29)).wrapping_mul(0x94d0_49bb_1331_11eb) ^ (hash >> 32)
        });
        ((hash >> 12) as f64 + 0.5) / (1_u64 << 52) as f64
    }
}

impl Chance for Hash {
    /// The exponential race: the token with the smallest exponential time divided by its probability wins.
    fn draw(&mut self, law: &Law, count: usize, address: Address, out: &mut Vec<Token>) {
        let time = |(token, p): (Token, f64)| (-(-Hash::uniform(address, token)).ln_1p() / p, token);
        let mut times: Vec<(f64, Token)> = law.iter().map(time).collect();
        times.sort_by(|a, b| a.0.total_cmp(&b.0));
        out.clear();
        out.extend(times.iter().take(count).map(|(_, token)| *token));
    }

    fn coin(&mut self, probability: f64, address: Address) -> bool {
        Hash::uniform(address, 0) < probability
    }
}

/// Guesses the next minutes from the approximation. Under *exact* the approximation draws with the same noise as the
/// exact law, so that the two agree more often; under *rejection* the guess is a draw of its own, offered with its law.
fn draft(now: Token, position: u64, minutes: usize, promise: Promise) -> DraftTree {
    let (mut tree, mut at, mut waiting) = (DraftTree::new(), None, now);
    for i in 0..minutes as u64 {
        let law = approximate(waiting);
        let proposal;
        (waiting, proposal) = if promise == Promise::Exact {
            (Hash.pick(&law, Address::token(SEED, position + i)), Proposal::Point)
        } else {
            let id = tree.add_law(law.clone());
            (
                Hash.pick(&law, Address::draft(Pass { seed: SEED, request: 0, start: position }, position + i, id)),
                Proposal::Drawn(id),
            )
        };
        at = Some(tree.offer(at, waiting, proposal, 0));
    }
    tree
}

/// The queue in every minute, and the number of rounds in which it was computed.
fn simulate(promise: Promise, guesses: usize) -> (Vec<Token>, usize) {
    let (mut queue, mut rounds) = (vec![0], 0);
    while queue.len() <= MINUTES {
        let (now, position) = (queue[queue.len() - 1], queue.len() as u64);
        let tree = draft(now, position, guesses, promise);
        // The round: the slow function at the pending minute and after every guess. It could run on as many machines as
        // there are guesses.
        let first = exact(now);
        let after: Vec<Law> = tree.nodes().map(|node| exact(tree.token(node))).collect();
        let mut law = |node: Option<NodeId>| node.map_or(&first, |node| &after[node.index()]).clone();
        let pass = Pass { seed: SEED, request: 0, start: position };
        queue.extend(verify(&tree, &mut law, promise, pass, &mut Hash).tokens);
        rounds += 1;
    }
    queue.truncate(MINUTES + 1);
    (queue, rounds)
}

fn main() {
    let (plain, rounds) = simulate(Promise::Exact, 0);
    println!("{MINUTES} minutes of a bakery; a round is the slow function at several places at once\n");
    println!(
        "{:<10} {:>7} {:>7} {:>14} {:>13}  same queue",
        "promise", "guesses", "rounds", "minutes/round", "mean waiting"
    );
    let show = |promise: Promise, guesses: usize, queue: &[Token], rounds: usize| {
        let mean = queue.iter().map(|waiting| f64::from(*waiting)).sum::<f64>() / queue.len() as f64;
        let (name, each, same) = (format!("{promise:?}"), MINUTES as f64 / rounds as f64, queue == plain);
        println!("{name:<10} {guesses:>7} {rounds:>7} {each:>14.2} {mean:>13.3}  {}", if same { "yes" } else { "no" });
    };
    show(Promise::Exact, 0, &plain, rounds);
    for promise in [Promise::Exact, Promise::Rejection, Promise::Block] {
        for guesses in [1, 2, 4, 8] {
            let (queue, rounds) = simulate(promise, guesses);
            show(promise, guesses, &queue, rounds);
            assert!(promise != Promise::Exact || queue == plain, "exact keeps every minute");
        }
    }
    println!("\nexact: the very same queue. rejection, block: another queue of the same law, in fewer rounds.");
}
