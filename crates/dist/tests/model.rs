//! The meeting point of thread ranks under every order in which threads can run.

mod sync {
    pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard, RwLock};
}

#[path = "../src/slots.rs"]
mod slots;

use std::sync::atomic::{AtomicUsize, Ordering};

use loom::sync::Arc;
use loom::thread;

use slots::{Lost, Slots};

/// Runs `work(slots, rank)` on a thread each, in every order, or in those that interrupt threads at most `bound` times where
/// they could go on. Returns how many orders there were.
fn in_every_order(num_ranks: usize, bound: Option<usize>, work: fn(&Slots, usize)) -> usize {
    static NUM_ORDERS: AtomicUsize = AtomicUsize::new(0);
    let before = NUM_ORDERS.load(Ordering::SeqCst);
    let mut model = loom::model::Builder::new();
    model.preemption_bound = bound;
    model.check(move || {
        NUM_ORDERS.fetch_add(1, Ordering::SeqCst);
        let slots = Arc::new(Slots::new(num_ranks));
        let threads: Vec<_> = (1..num_ranks)
            .map(|rank| {
                let slots = Arc::clone(&slots);
                thread::spawn(move || work(&slots, rank))
            })
            .collect();
        work(&slots, 0);
        for thread in threads {
            thread.join().unwrap();
        }
    });
    NUM_ORDERS.load(Ordering::SeqCst) - before
}

/// What rank `rank` reads in a round in which rank r gives r and the round.
fn exchange(slots: &Slots, rank: usize, round: u64) -> Result<(), Lost> {
    let mut found = Vec::new();
    slots.exchange(rank, round, &[rank as u8, round as u8], &mut |rank, bytes| {
        found.push((rank, bytes.to_vec()));
        Ok::<_, Lost>(())
    })?;
    let expected: Vec<_> = (0..slots.num_ranks()).map(|rank| (rank, vec![rank as u8, round as u8])).collect();
    assert_eq!(found, expected);
    Ok(())
}

fn lost(rank: usize) -> Lost {
    Lost { rank, cause: Some("why".to_owned()) }
}

fn read_every_round(slots: &Slots, rank: usize, num_rounds: u64) {
    for round in 0..num_rounds {
        exchange(slots, rank, round).unwrap();
    }
}

#[test]
fn two_ranks_read_every_round() {
    assert!(in_every_order(2, None, |slots, rank| read_every_round(slots, rank, 1)) > 100);
    assert!(in_every_order(2, Some(4), |slots, rank| read_every_round(slots, rank, 3)) > 1000);
}

#[test]
fn three_ranks_read_every_round() {
    assert!(in_every_order(3, Some(3), |slots, rank| read_every_round(slots, rank, 1)) > 1000);
    assert!(in_every_order(3, Some(2), |slots, rank| read_every_round(slots, rank, 2)) > 1000);
}

#[test]
#[ignore = "slow: half a minute for 600,000 orders"]
fn two_ranks_read_two_rounds_in_every_order() {
    assert!(in_every_order(2, None, |slots, rank| read_every_round(slots, rank, 2)) > 100_000);
}

#[test]
fn a_lost_rank_wakes_the_other() {
    in_every_order(2, None, |slots, rank| {
        exchange(slots, rank, 0).unwrap();
        if rank == 1 {
            slots.lose(lost(1));
        } else {
            assert_eq!(exchange(slots, rank, 1), Err(lost(1)));
        }
    });
}

#[test]
fn a_lost_rank_wakes_all_others() {
    in_every_order(3, None, |slots, rank| {
        if rank == 2 {
            slots.lose(lost(2));
        } else {
            assert_eq!(exchange(slots, rank, 0), Err(lost(2)));
        }
    });
}

#[test]
fn what_all_have_given_is_read_by_all_whoever_is_lost_afterwards() {
    in_every_order(2, None, |slots, rank| {
        exchange(slots, rank, 0).unwrap();
        slots.lose(lost(rank));
    });
}

#[test]
fn orders_that_end_differently_are_all_tried() {
    static FIRST: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];
    in_every_order(2, None, |slots, rank| {
        slots.lose(lost(rank));
        if rank == 0 {
            let first = exchange(slots, rank, 0).unwrap_err();
            FIRST[first.rank].fetch_add(1, Ordering::SeqCst);
        }
    });
    assert!(FIRST.iter().all(|count| count.load(Ordering::SeqCst) > 0), "{FIRST:?}");
}
