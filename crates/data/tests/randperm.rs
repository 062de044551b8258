//! The order of rows against PyTorch's.

use crate::conformance;

#[test]
fn permutations_equal_the_reference() {
    let Some(cases) = conformance::lines("training/randperm.jsonl") else { return };
    assert!(!cases.is_empty());
    for case in cases {
        let (n, seed) = (case["n"].as_u64().unwrap() as usize, case["seed"].as_u64().unwrap());
        let expected: Vec<usize> = serde_json::from_value(case["perm"].clone()).unwrap();
        let order = data::randperm(n, seed);
        assert_eq!(order.len(), n);
        assert_eq!(order[..expected.len()], expected, "n = {n}, seed = {seed}");
    }
}
