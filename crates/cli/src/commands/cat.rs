//! `tune cat`: a config as YAML, as it was written or as a recipe is given it.

use config::Order;

use crate::args::CatArgs;
use crate::exit::Result;

/// Prints the config.
pub(crate) fn run(args: &CatArgs) -> Result {
    let (written, _) = super::open_config(&args.config, None)?;
    let written = written.with_overrides(&args.overrides)?;
    let order = if args.sort { Order::Sorted } else { Order::File };
    let text = match (args.resolved, args.json) {
        (false, _) => written.to_yaml(order),
        (true, false) => written.resolve()?.to_yaml(order),
        (true, true) => format!("{}\n", written.resolve()?.to_json(order)),
    };
    super::print(&text)
}
