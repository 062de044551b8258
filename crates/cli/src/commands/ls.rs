//! `tune ls`: recipes and their built-in configs, two columns as torchtune prints them. What this version does not have all
//! parts for says so in a third.

use std::fmt::Write;

use config::Merged;
use recipes::registry::{self, BuiltInConfig, Recipe};

use crate::exit::Result;

/// Least width of a column.
const COLUMN: usize = 40;

const NOT_AVAILABLE: &str = "not available yet";

/// Prints the table.
pub(crate) fn run() -> Result {
    super::print(&table())
}

fn table() -> String {
    let names = registry::all().iter().flat_map(|r| std::iter::once(r.name).chain(r.configs.iter().map(|c| c.name)));
    let width = names.map(str::len).max().unwrap_or(0).max(COLUMN);
    let mut text = String::new();
    let mut line = |recipe: &str, config: &str, note: &str| {
        let row = format!("{recipe:width$} {config:width$} {note}");
        let _ = writeln!(text, "{}", row.trim_end());
    };
    line("RECIPE", "CONFIG", "");
    for recipe in registry::all() {
        // A recipe without configs has one row too.
        if recipe.configs.is_empty() {
            line(recipe.name, "<>", if recipe.is_available { "" } else { NOT_AVAILABLE });
        }
        for (i, config) in recipe.configs.iter().enumerate() {
            let name = if i == 0 { recipe.name } else { "" };
            let note = match recipe.is_available {
                false => NOT_AVAILABLE,
                true if runs(recipe, config) => "",
                true => "names parts not available yet",
            };
            line(name, config.name, note);
        }
    }
    text
}

/// Whether this version has all that a config names.
fn runs(recipe: &Recipe, config: &BuiltInConfig) -> bool {
    let merged = Merged::from_text(config.name, config.text);
    merged.is_ok_and(|merged| recipes::check(recipe, &merged).is_empty())
}
