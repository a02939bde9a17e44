//! Settings of a trie drafter: lengths, modes, weights, and which procedures run.

use crate::trie::nodes::Counts;

/// How the retrieved branches are laid out in the draft.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// Hierarchical: branches share the nodes of their common prefix.
    #[default]
    Hier,
    /// Parallel: as many branches as would fit side by side, each counted with all of its tokens. (A draft tree holds a
    /// shared prefix once, so the rows that it would repeat are not used.)
    Par,
    /// Only the most probable branch, as in LLMA.
    One,
}

impl Layout {
    /// All of them, in the order of this type.
    pub const ALL: [Layout; 3] = [Layout::Hier, Layout::Par, Layout::One];

    /// Its name, as the authors spell it.
    pub fn name(self) -> &'static str {
        match self {
            Layout::Hier => "hier",
            Layout::Par => "par",
            Layout::One => "one",
        }
    }

    /// The layout of this name.
    pub fn from_name(name: &str) -> Option<Layout> {
        Layout::ALL.into_iter().find(|layout| layout.name() == name)
    }
}

/// Which branches are retrieved.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum BranchSource {
    /// Branches of prompts only.
    Input,
    /// Branches of outputs only.
    Output,
    /// Branches of both; those of prompts weigh more.
    #[default]
    Mix,
}

impl BranchSource {
    /// All of them, in the order of this type.
    pub const ALL: [BranchSource; 3] = [BranchSource::Input, BranchSource::Output, BranchSource::Mix];

    /// Its name, as the authors spell it.
    pub fn name(self) -> &'static str {
        match self {
            BranchSource::Input => "input",
            BranchSource::Output => "output",
            BranchSource::Mix => "mix",
        }
    }

    /// The source of this name.
    pub fn from_name(name: &str) -> Option<BranchSource> {
        BranchSource::ALL.into_iter().find(|source| source.name() == name)
    }
}

/// How branches are chosen among all that match the last tokens.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum RetrievalRule {
    /// By the estimated probability that the whole path is accepted: prefixes of all lengths at once, interpolated.
    #[default]
    Interpolated,
    /// By frequency, as the authors describe it: those of the longest prefix that has enough of them, prompts before
    /// outputs ([`TrieOptions::of_rule`]).
    Frequency,
}

/// Settings of a [`crate::TrieDrafter`]. Names are the authors' (Zhao et al. 2024), if they have one.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct TrieOptions {
    /// Maximum number of nodes (the authors' `decoding_length`) drafted per pass, which has a limit of its own.
    pub nodes_max: usize,
    /// Tokens of a branch after its first one, from 1.
    pub branch_length: usize,
    /// First half of the authors' `decoding_mode`: how branches are laid out.
    pub layout: Layout,
    /// Second half of the authors' `decoding_mode`: which branches are retrieved.
    pub source: BranchSource,
    /// How branches are chosen, and how a trie that is full is pruned.
    pub rule: RetrievalRule,
    /// Longest run of last tokens that is matched; at most `branch_length`.
    pub prefix_max: usize,
    /// Shortest run of last tokens that is matched; 0 offers the most frequent tokens if longer runs leave room.
    pub prefix_min: usize,
    /// Weight of an occurrence in a prompt; one in the output of another sequence has weight 1.
    pub prompt_weight: f32,
    /// Weight of an occurrence in the sequence's own output.
    pub own_weight: f32,
    /// Maximum weight of all occurrences of a prefix in shared branches together.
    pub shared_max: f32,
    /// A prefix seen n times leaves backoff / (n + backoff) of the probability to the next shorter one, from 0.
    pub backoff: f32,
    /// A continuation less probable than this, given what it continues, is not drafted; 0 to 1.
    pub share_min: f32,
    /// A continuation with a lower gain than this is not drafted; 0 to 1.
    pub gain_min: f32,
    /// Maximum number of nodes of a trie that outlives its sequence (there is one per first token); `None`: 16 times
    /// `nodes_max`.
    pub capacity: Option<usize>,
    /// Maximum number of tenants whose tries are kept, from 1; the least recently used are dropped first. The public
    /// ones do not count.
    pub tenants_max: usize,
    /// Whether branches of prompts are inserted.
    pub insert_prompt: bool,
    /// Whether branches of outputs are inserted.
    pub insert_output: bool,
    /// Whether a prompt's branches are dropped when its sequence ends. Otherwise the tenant's later sequences see them.
    pub eliminate: bool,
    /// Whether tries that outlive their sequence are pruned to their capacity.
    pub prune: bool,
}

impl Default for TrieOptions {
    /// The settings of the highest acceptance, with well calibrated estimates, on recorded news summaries with 7 and 15
    /// nodes per pass. Most combinations of branches of 8 to 16 tokens, prefixes of up to 4 to 8, weights of 2 to 8 and
    /// backoffs of 2 to 16 are not much worse.
    fn default() -> TrieOptions {
        TrieOptions {
            nodes_max: 16,
            branch_length: 12,
            layout: Layout::Hier,
            source: BranchSource::Mix,
            rule: RetrievalRule::Interpolated,
            prefix_max: 4,
            prefix_min: 0,
            prompt_weight: 4.0,
            own_weight: 4.0,
            shared_max: 128.0,
            backoff: 8.0,
            share_min: 0.01,
            gain_min: 0.0,
            capacity: None,
            tenants_max: 64,
            insert_prompt: true,
            insert_output: true,
            eliminate: true,
            prune: true,
        }
    }
}

impl TrieOptions {
    /// The settings of this rule. By frequency they have the numbers of the authors' code: prefixes of two tokens and
    /// of one, and an occurrence in the prompt weighs as much as ten thousand in outputs.
    pub fn of_rule(rule: RetrievalRule) -> TrieOptions {
        match rule {
            RetrievalRule::Interpolated => TrieOptions::default(),
            RetrievalRule::Frequency => TrieOptions {
                rule,
                prefix_max: 2,
                prefix_min: 1,
                prompt_weight: 1e4,
                own_weight: 1.0,
                ..TrieOptions::default()
            },
        }
    }

    /// Tokens of a branch in a trie, the first included. By frequency a draft of `branch_length` tokens follows the
    /// longest prefix too, as in the authors' code; interpolated, shorter prefixes give its last tokens.
    pub(super) fn window(&self) -> usize {
        self.branch_length
            + match self.rule {
                RetrievalRule::Interpolated => 1,
                RetrievalRule::Frequency => self.prefix_max,
            }
    }

    /// The weight of occurrences, by where they were seen; `is_own`: in the sequence that is drafted for.
    pub(super) fn weight(&self, counts: Counts, is_own: bool) -> f32 {
        let prompt = counts.prompt as f32 * self.prompt_weight;
        let output = counts.output as f32 * if is_own { self.own_weight } else { 1.0 };
        match self.source {
            BranchSource::Input => prompt,
            BranchSource::Output => output,
            BranchSource::Mix => prompt + output,
        }
    }

    /// Maximum number of nodes of a trie that outlives its sequence, if bounded.
    pub fn trie_capacity(&self) -> Option<usize> {
        self.prune.then(|| self.capacity.unwrap_or(self.nodes_max.saturating_mul(16)))
    }

    /// The first setting that is out of range, if any: the name of the field, what is expected, what was found.
    pub fn problem(&self) -> Option<String> {
        let lengths = (1..=BRANCH_LENGTH_MAX).contains(&self.branch_length);
        if !lengths {
            return Some(format!("branch_length: expected 1 to {BRANCH_LENGTH_MAX}, found {}", self.branch_length));
        }
        if !(1..=self.branch_length).contains(&self.prefix_max) {
            let most = self.branch_length;
            return Some(format!(
                "prefix_max: expected 1 to branch_length, which is {most}, found {}",
                self.prefix_max
            ));
        }
        if self.prefix_min > self.prefix_max {
            let most = self.prefix_max;
            return Some(format!("prefix_min: expected 0 to prefix_max, which is {most}, found {}", self.prefix_min));
        }
        if self.trie_capacity() == Some(0) {
            return Some("capacity: expected at least 1 node, found 0".to_string());
        }
        if self.tenants_max == 0 {
            return Some("tenants_max: expected at least 1, found 0".to_string());
        }
        let numbers = [
            ("prompt_weight", self.prompt_weight),
            ("own_weight", self.own_weight),
            ("shared_max", self.shared_max),
            ("backoff", self.backoff),
            ("share_min", self.share_min),
            ("gain_min", self.gain_min),
        ];
        let bad = numbers.into_iter().find(|(_, number)| !(number.is_finite() && *number >= 0.0));
        bad.map(|(name, number)| format!("{name}: expected a number from 0, found {number}"))
    }
}

/// Longest branch: while its sequence runs, every token takes as many nodes.
pub const BRANCH_LENGTH_MAX: usize = 256;
