//! Tests of memory: what is kept, of how many tenants, and when it is dropped; and what an encoder reads, which is kept
//! as a prompt is.

use super::*;

#[test]
fn memory_is_counted_and_freed() {
    let mut drafter = TrieDrafter::new(matches());
    let text: Vec<Token> = (0..500).map(|i| i * i % 97).collect();
    drafter.open(&Opening::new(ONE, &text));
    let (bytes, nodes) = (drafter.memory_bytes(), drafter.nodes());
    assert!(nodes > 500 && bytes >= nodes * 20, "{nodes} nodes, {bytes} bytes");
    drafter.close(ONE);
    assert!(drafter.memory_bytes() < 1000, "{} bytes", drafter.memory_bytes());
    assert_eq!(drafter.nodes(), 0);
}

#[test]
fn the_least_recently_used_tenant_is_forgotten_and_empty_outputs_take_no_memory() {
    let mut drafter = TrieDrafter::new(TrieOptions { tenants_max: 2, ..matches() });
    for tenant in 0..100 {
        fresh(&mut drafter, &[1, 2], tenant);
    }
    assert_eq!((drafter.memories.all().count(), drafter.memory_bytes()), (1, 0), "nothing was written");
    drafter.warm_up(&[8, 9], 0, None);
    write(&mut drafter, &[1], &[2, 3], 1);
    write(&mut drafter, &[1], &[2, 3], 2);
    let knows = |drafter: &mut TrieDrafter, tenant| !fresh(drafter, &[2], tenant).is_empty();
    // The first is used again, so the second is dropped.
    assert!(knows(&mut drafter, 1));
    write(&mut drafter, &[1], &[2, 3], 3);
    assert_eq!(drafter.memories.all().count(), 3, "the public ones and two tenants'");
    assert!(knows(&mut drafter, 1) && !knows(&mut drafter, 2) && knows(&mut drafter, 3));
    assert_eq!(fresh(&mut drafter, &[8], 2).tokens(), [9], "public branches are kept");
    let problem = TrieOptions { tenants_max: 0, ..matches() }.problem().unwrap();
    assert_eq!(problem, "tenants_max: expected at least 1, found 0");
}

#[test]
fn the_source_of_an_encoder_is_retrieved_like_a_prompt() {
    let source = [5, 6, 7, 8, 9];
    let opening = Opening { source: &source, tenant: Tenant(1), ..Opening::new(ONE, &[0]) };
    let mut drafter = TrieDrafter::new(matches());
    drafter.open(&opening);
    assert_eq!(propose(&mut drafter, ONE, &[0, 6], Limits::nodes(3)).tokens(), [7, 8, 9]);
    assert!(propose(&mut drafter, ONE, &[0, 6, 9], Limits::nodes(3)).is_empty(), "the prompt does not follow it");
    assert!(fresh(&mut drafter, &[6], 1).is_empty(), "another sequence of the same tenant");
    drafter.close(ONE);
    assert!(fresh(&mut drafter, &[7], 1).is_empty());

    let mut stays = TrieDrafter::new(TrieOptions { eliminate: false, ..matches() });
    stays.open(&opening);
    stays.close(ONE);
    assert_eq!(fresh(&mut stays, &[6], 1).tokens()[..2], [7, 8]);
    assert!(fresh(&mut stays, &[6], 2).is_empty(), "another tenant");

    let mut outputs = TrieDrafter::new(TrieOptions { insert_prompt: false, ..matches() });
    outputs.open(&opening);
    assert!(propose(&mut outputs, ONE, &[0, 6], Limits::nodes(3)).is_empty());
}
