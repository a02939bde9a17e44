//! A real network as a target of the suite: behind the engine as it is, and as a function that the oracle asks.
//!
//! The function reads a text one row a pass, in a cache of its own in which nothing is ever moved: the plainest way
//! there is. Of the vocabulary the first tokens are taken and the rows of the others are not loaded, so that the words
//! of toys suffice. Left out: heads, whose toys know only the hidden states of other toys.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use foretoken_model::{Batch, Checkpoint, Executor, Model, Options, PageId, PageTable, Span};
use foretoken_speculation::Token;

use crate::table::Table;

/// Positions of every cache.
const POSITIONS: usize = 640;

/// A folder with a network, of whose vocabulary some tokens are taken.
#[derive(Clone, Debug)]
pub struct Network {
    path: PathBuf,
    tokens: usize,
}

impl Network {
    /// The network of a folder, with its first `tokens` tokens.
    pub fn new(path: impl Into<PathBuf>, tokens: usize) -> Self {
        Self { path: path.into(), tokens }
    }

    /// The network with pages and passes of these sizes.
    ///
    /// # Panics
    /// If it cannot be read.
    pub fn load(&self, page_len: usize, rows_max: usize) -> Model {
        let checkpoint = Checkpoint::open(&self.path).unwrap_or_else(|error| panic!("{error}"));
        let (pages, tokens) = (POSITIONS.div_ceil(page_len), Some(self.tokens));
        let options = Options { page_len, pages, rows_max, tokens, ..Options::for_positions(POSITIONS, 1) };
        Model::load(&checkpoint, options, &mut |_, _| ()).unwrap_or_else(|error| panic!("{error}"))
    }

    /// What it says of any text.
    ///
    /// # Panics
    /// If it cannot be read.
    pub fn table(&self) -> Table {
        let plain = Plain { model: self.load(POSITIONS, 1), read: Vec::new(), known: HashMap::new() };
        let plain = Mutex::new(plain);
        Table::new(self.tokens, move |tokens| plain.lock().unwrap_or_else(PoisonError::into_inner).logits(tokens))
    }
}

/// A network that reads one text, row by row.
struct Plain {
    model: Model,
    /// The tokens whose rows are in the cache.
    read: Vec<Token>,
    known: HashMap<Vec<Token>, Vec<f32>>,
}

impl Plain {
    fn logits(&mut self, tokens: &[Token]) -> Vec<f32> {
        if let Some(known) = self.known.get(tokens) {
            return known.clone();
        }
        let shared = self.read.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        self.read.truncate(shared.min(tokens.len() - 1));
        let tables: Vec<PageTable> = vec![vec![PageId(0)]; self.model.capacity().groups.len()];
        while self.read.len() < tokens.len() {
            let start = self.read.len();
            let tokens = &tokens[start..=start];
            let span = Span { tables: &tables, start, tokens, wanted: &[0], ..Span::default() };
            let pass = self.model.forward(&Batch { spans: &[span], hidden_layers: &[] });
            pass.unwrap_or_else(|error| panic!("{error}"));
            self.read.push(tokens[0]);
            self.known.insert(self.read.clone(), self.model.outputs().row(0).to_vec());
        }
        self.known[tokens].clone()
    }
}
