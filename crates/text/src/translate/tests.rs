//! Translations have the same bytes in both vocabularies, however the tokens are split into passes.

use std::path::Path;
use std::sync::LazyLock;

use proptest::prelude::*;

use super::*;

fn load(name: &str) -> Arc<Tokenizer> {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models")).join(name);
    Arc::new(Tokenizer::from_dir(&folder).expect("the demo models are in the repository"))
}

/// The demo models' vocabularies, and those of others if they are there.
static ALL: LazyLock<Vec<Arc<Tokenizer>>> = LazyLock::new(|| {
    let mut all = vec![load("demo-target"), load("demo-other-tokenizer")];
    let Some(folder) = std::env::var_os("FORETOKEN_TEST_DATA") else {
        println!("skipped: vocabularies are looked for in FORETOKEN_TEST_DATA, which is not set");
        return all;
    };
    let folder = Path::new(&folder).join("data/vocab");
    let files = std::fs::read_dir(folder).expect("the test data have vocabularies");
    let mut files: Vec<_> = files.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    for path in files.iter().filter(|path| path.extension().is_some_and(|ending| ending == "gguf")) {
        let file = foretoken_weights::gguf::open(path).expect("the test data are good files");
        all.push(Arc::new(
            Tokenizer::from_gguf(&path.display().to_string(), &file.metadata).expect("good vocabularies"),
        ));
    }
    all
});

/// Every vocabulary as the target of every other one.
static PAIRS: LazyLock<Vec<Vocabularies>> = LazyLock::new(|| {
    let mut pairs = Vec::new();
    for (i, target) in ALL.iter().enumerate() {
        for (_, assistant) in ALL.iter().enumerate().filter(|(j, _)| *j != i) {
            let [target, assistant] = [target, assistant].map(Arc::clone);
            pairs.push(Vocabularies::new(target, assistant, 10, 10).expect("all have letters in common"));
        }
    }
    pairs
});

fn demo() -> &'static Vocabularies {
    &PAIRS[0]
}

/// Segments of text as bytes, and the special tokens between them.
#[derive(Debug, PartialEq)]
enum Item {
    Text(Vec<u8>),
    Special(Token),
}

fn items(tokenizer: &Tokenizer, tokens: &[Token]) -> Vec<Item> {
    let mut items = Vec::new();
    for &token in tokens {
        match (tokenizer.is_special(token), items.last_mut()) {
            (true, _) => items.push(Item::Special(token)),
            (false, Some(Item::Text(text))) => text.extend_from_slice(tokenizer.token_bytes(token)),
            (false, _) => items.push(Item::Text(tokenizer.token_bytes(token).to_vec())),
        }
    }
    items.retain(|item| *item != Item::Text(Vec::new()));
    items
}

/// Compares segment by segment; a tokenizer's first space may be a dummy prefix.
fn check(pair: &Vocabularies, translation: &Translation) -> Result<(), TestCaseError> {
    let mut theirs = items(pair.assistant(), translation.assistant());
    let added = pair.assistant().bos().filter(|_| pair.assistant().adds_bos()).map(Item::Special);
    if theirs.first() == added.as_ref() && added.is_some() {
        theirs.remove(0);
    }
    let mut ours = items(pair.target(), translation.target());
    if let Some(last) = ours.last_mut()
        && let Item::Text(text) = last
    {
        prop_assert!(text.ends_with(translation.held()));
        text.truncate(text.len() - translation.held().len());
    }
    let mut theirs = theirs.into_iter().peekable();
    let mut is_beginning = true;
    // The assistant's text not yet matched; a special token that is left out joins two segments.
    let mut found: Vec<u8> = Vec::new();
    for item in ours {
        match item {
            Item::Special(special) => {
                is_beginning = true;
                let Some(special) = pair.to_assistant.of(special) else { continue };
                prop_assert!(found.is_empty(), "{found:?} too much");
                let added_already =
                    added == Some(Item::Special(special)) && theirs.peek() != Some(&Item::Special(special));
                prop_assert!(added_already || theirs.next() == Some(Item::Special(special)), "{special} is missing");
            }
            Item::Text(mut text) => {
                if is_beginning && pair.target().drops_first_space() && text.first() == Some(&b' ') {
                    text.remove(0);
                }
                is_beginning = false;
                // Some vocabularies have no token for bytes that are rare.
                text.retain(|byte| byte.is_ascii() || pair.assistant.tokens_by_bytes.contains_key(&[*byte][..]));
                if text.is_empty() {
                    continue;
                }
                if found.is_empty()
                    && let Some(Item::Text(text)) = theirs.peek()
                {
                    found.clone_from(text);
                    theirs.next();
                }
                let spaced = [b" ", text.as_slice()].concat();
                let has_dummy_prefix = pair.assistant().drops_first_space() && found.starts_with(&spaced);
                let text = if has_dummy_prefix { spaced } else { text };
                prop_assert!(found.starts_with(&text), "{:?} for {:?}", found, text);
                found.drain(..text.len());
            }
        }
    }
    prop_assert!(found.is_empty() && theirs.next().is_none());
    Ok(())
}

/// Texts of many kinds, with special tokens written out.
fn texts() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        "\\PC{0,12}",
        "[ a-zA-Zäß我😁€\\n\\t]{0,24}",
        " {0,5}\\n{0,3}[a-z]{0,6}",
        Just("<|end|><|user|>".to_owned()),
        Just("</s><s>".to_owned()),
        Just("<|endoftext|> ".to_owned()),
        Just("it's 12,345.67 (naïve) 工作 😶‍🌫️".to_owned()),
    ];
    prop::collection::vec(piece, 0..5).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn the_assistant_reads_the_same_bytes(text in texts(), broken in prop::collection::vec(0_u32..50_000, 0..8)) {
        for pair in PAIRS.iter() {
            let mut tokens = pair.target().encode(&text, true).unwrap();
            let mut translation = pair.begin();
            pair.read(&mut translation, &tokens);
            check(pair, &translation)?;
            // Random tokens, which break characters in many ways.
            tokens.extend(broken.iter().map(|token| token % pair.target().vocabulary_len() as Token));
            let read = translation.target().len();
            pair.read(&mut translation, &tokens[read..]);
            check(pair, &translation)?;
        }
    }

    #[test]
    fn broken_characters_survive(tokens in prop::collection::vec(0_u32..600, 0..24)) {
        for pair in PAIRS.iter() {
            let mut translation = pair.begin();
            pair.read(&mut translation, &tokens);
            check(pair, &translation)?;
        }
    }

    #[test]
    fn splits_and_rolled_back_tokens_do_not_matter(
        text in texts(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..5),
        wrong in prop::collection::vec(0_u32..50_000, 1..9),
    ) {
        for pair in PAIRS.iter() {
            let tokens = pair.target().encode(&text, true).unwrap();
            let mut at_once = pair.begin();
            pair.read(&mut at_once, &tokens);
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(tokens.len() + 1)).collect();
            cuts.sort_unstable();
            let mut translation = pair.begin();
            let mut before = translation.assistant().to_vec();
            for cut in cuts.into_iter().chain([tokens.len()]) {
                let done = translation.target().len();
                let unchanged = pair.read(&mut translation, &tokens[done..cut]);
                prop_assert_eq!(&before[..unchanged], &translation.assistant()[..unchanged]);
                before = translation.assistant().to_vec();
                let here = translation.clone();
                let wrong: Vec<Token> = wrong.iter().map(|t| t % pair.target().vocabulary_len() as Token).collect();
                pair.read(&mut translation, &wrong);
                let further = translation.assistant().to_vec();
                let unchanged = translation.truncate(cut);
                prop_assert_eq!(&translation, &here);
                prop_assert_eq!(&further[..unchanged], &translation.assistant()[..unchanged]);
            }
            prop_assert_eq!(translation, at_once);
        }
    }

    #[test]
    fn translated_drafts_have_the_same_bytes(
        text in texts(),
        cut in any::<prop::sample::Index>(),
        more in "[ a-zé我]{1,12}",
    ) {
        for pair in PAIRS.iter() {
            let tokens = pair.target().encode(&text, true).unwrap();
            let mut translation = pair.begin();
            pair.read(&mut translation, &tokens[..cut.index(tokens.len() + 1)]);
            let drafted = pair.assistant().encode_plain(&more).unwrap();
            let mut pieces = Vec::new();
            pair.propose(&translation, &drafted, &mut pieces);
            let bytes = |tokenizer: &Tokenizer, tokens: &[Token]| -> Vec<u8> {
                tokens.iter().flat_map(|&token| tokenizer.token_bytes(token).to_vec()).collect()
            };
            let found = bytes(pair.target(), &pieces.iter().map(|piece| piece.token).collect::<Vec<_>>());
            let expected = bytes(pair.assistant(), &drafted);
            let spaces = |bytes: &[u8]| bytes.iter().take_while(|&&byte| byte == b' ').count();
            if !translation.held().is_empty() {
                // An incomplete character is continued by the rest of it, or not at all: a space before it is a word of
                // its own, unless the assistant's tokenizer inserts a dummy prefix.
                let has_dummy_prefix = translation.is_beginning() && pair.assistant().drops_first_space();
                let drafted = match has_dummy_prefix {
                    true => expected.strip_prefix(b" ").unwrap_or(&expected),
                    false => &expected,
                };
                prop_assert_eq!(&found, drafted.strip_prefix(translation.held()).unwrap_or_default());
                continue;
            }
            prop_assert_eq!(&found[spaces(&found)..], &expected[spaces(&expected)..]);
            prop_assert!(spaces(&found).abs_diff(spaces(&expected)) <= 1);
            if let Some(last) = pieces.last() {
                prop_assert_eq!((last.drafted_end, last.is_open), (drafted.len(), true));
            }
        }
    }
}

#[test]
fn reading_token_by_token_equals_encoding_at_once() {
    let text = "<|system|>Services: Restaurants_2<|end|><|user|>Hi, could you get me a table for 2?<|end|><|call|>\
        {\"name\": \"FindBus\", \"arguments\": {\"date\": \"2019-03-08\"}}<|end|>\
        once upon a time there was a little dog.\n\nit ran.";
    for pair in PAIRS.iter() {
        let mut translation = pair.begin();
        pair.read(&mut translation, &pair.target().encode(text, false).unwrap());
        if std::ptr::eq(pair, demo()) {
            assert_eq!(translation.assistant(), pair.assistant().encode(text, false).unwrap());
        }
    }
}

#[test]
fn special_tokens_are_translated_by_text_and_a_missing_one_ends_the_draft() {
    let pair = demo();
    let mut translation = pair.begin();
    pair.read(&mut translation, &pair.target().encode("<|user|>hi<|end|><|assistant|>", false).unwrap());
    // The assistant's dummy prefix space is not translated.
    let drafted = pair.assistant().encode("Sure, it is.<|end|><|user|>no", false).unwrap();
    let mut pieces = Vec::new();
    pair.propose(&translation, &drafted, &mut pieces);
    let tokens: Vec<Token> = pieces.iter().map(|piece| piece.token).collect();
    assert_eq!(tokens, pair.target().encode("Sure, it is.<|end|><|user|>no", false).unwrap());
    assert!(pieces.is_sorted_by_key(|piece| piece.drafted_end));
    // Only the assistant has <unk>.
    assert_eq!(pair.counterpart(7), Counterpart::Nothing);
    assert_eq!(pair.counterpart(249), Counterpart::Special(6));
    assert_eq!(pair.counterpart(300), Counterpart::Text);
    pieces.clear();
    pair.propose(&translation, &[drafted[0], 7, drafted[1]], &mut pieces);
    assert!(pieces.iter().all(|piece| piece.drafted_end == 1));
}

#[test]
fn incomplete_characters_are_held_back() {
    let pair = demo();
    let mut translation = pair.begin();
    let tokens = pair.target().encode("a 我", false).unwrap();
    let incomplete: Vec<Token> = tokens.iter().copied().take(tokens.len() - 1).collect();
    pair.read(&mut translation, &incomplete);
    assert!(!translation.held().is_empty());
    assert!(pair.shared(&translation).is_empty());
    let drafted = pair.assistant().encode_plain("我").unwrap();
    let mut pieces = Vec::new();
    // The assistant drafts the character from its first byte (after the dummy prefix of its tokenizer).
    pair.propose(&translation, &drafted[1..], &mut pieces);
    assert_eq!(pieces.iter().map(|piece| piece.token).collect::<Vec<_>>(), tokens[tokens.len() - 1..]);
}

#[test]
fn two_vocabularies_share_tokens() {
    let pair = demo();
    let (shared, count) = pair.overlap();
    assert!(shared > 1000 && shared < count && count < 4096, "{shared} of {count}");
    assert!(pair.shared(&pair.begin()).len() > 1000);
    let error = pair.check_overlap(0.99).unwrap_err().to_string();
    let expected = format!("in common, found {shared} of {count}");
    assert!(
        !error.contains('\n') && error.contains("expected a vocabulary that shares tokens with"),
        "{error} {expected}"
    );
}
