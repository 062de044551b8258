//! One MPI rank of the integration tests, which start it through `mpirun`: `mpi_ranks <case>`.
//!
//! Exit code: 0 if the rank did its work; a rank that fails ends all processes.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "tests read what it prints")]
#![expect(clippy::unwrap_used, reason = "part of a test")]

#[path = "../tests/table.rs"]
mod table;

use std::process::ExitCode;
use std::time::Duration;

use dist::{Communicator, Error, Mesh, Result, mpi_environment, run_rank};

fn main() -> ExitCode {
    let case = std::env::args().nth(1).unwrap_or_default();
    let ranks = match dist::mpi::start() {
        Ok(ranks) => ranks,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::FAILURE;
        }
    };
    match run_rank(&ranks, |ranks| run(&case, &ranks)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(cause) => {
            eprintln!("error: {cause}: survived its own failure");
            ExitCode::FAILURE
        }
    }
}

fn run(case: &str, ranks: &Communicator) -> Result<()> {
    let (me, num_ranks) = (ranks.rank(), ranks.world_size());
    let long = Duration::from_hours(1);
    match case {
        "table" => {
            let environment = mpi_environment().expect("a launcher started this process");
            assert_eq!((environment.rank, environment.world_size), (me, num_ranks));
            assert!(environment.local_rank < num_ranks);
            assert!(matches!(dist::mpi::start(), Err(Error::MpiStarted)));
            for (name, case) in table::CASES {
                table::run(*case, ranks)?;
                if me == 0 {
                    println!("passed on {num_ranks}: {name}");
                }
            }
            Ok(())
        }
        "wrong" => table::run(table::wrong, ranks),
        // The others wait in groups that the failing rank never calls.
        "error" => {
            let mesh = Mesh::new(ranks.clone(), 2, num_ranks / 2)?;
            match me {
                1 => Err(Error::Root { root: 9, world_size: num_ranks }),
                0 => mesh.replicate.barrier().wait(),
                _ => ranks.barrier().wait(),
            }
        }
        "panic" => {
            assert!(me != 1, "rank 1 has had enough");
            ranks.barrier().wait()
        }
        // Its own thread is waiting in an operation that nobody else comes to.
        "error in wait" => {
            if me != 1 {
                std::thread::sleep(long);
            }
            let _waiting = ranks.barrier();
            std::thread::sleep(Duration::from_millis(100));
            Err(Error::Root { root: 9, world_size: num_ranks })
        }
        "drift" if me == 1 => ranks.sum(vec![1.0]).wait().map(|_| ()),
        "drift" => ranks.barrier().wait(),
        "ends early" => {
            let mesh = Mesh::new(ranks.clone(), 1, num_ranks)?;
            let group = mesh.shard.split(0)?;
            if me == 1 { Ok(()) } else { group.barrier().wait() }
        }
        "wait to be killed" => {
            ranks.barrier().wait()?;
            println!("rank {me} has process {}", std::process::id());
            if me == 1 {
                std::thread::sleep(long);
            }
            ranks.barrier().wait()
        }
        _ => panic!("no case `{case}`"),
    }
}
