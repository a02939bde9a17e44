//! Tests of memory: what is kept, of how many tenants, and when it is dropped.

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
