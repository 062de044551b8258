//! What must hold for any text and any arguments, as one function that the property tests and the fuzz target call.
//!
//! - Reading, overriding, resolving and checking never panic; errors are told, and those of a file each name a line of it,
//!   in its order, a syntax error last.
//! - Where references cannot be resolved, the rest is checked, and what is told of them stays.
//! - The same arguments give the same tree.
//! - A tree that was printed reads back as itself and prints the same again, at every stage.

use config::{Error, Node, Order, ProblemKind, Problems, Written, YamlFault};

/// Between the YAML text and the arguments, one a line, in an input of [`check`].
const SEPARATOR: &str = "---args---\n";

/// How a tree becomes text.
pub type Printer = fn(&Node, Order) -> String;

config::component! {
    /// One key of each kind, for what checking makes of odd values.
    pub struct Fields {
        /// A switch.
        pub a: bool = true,
        /// A count.
        pub b: usize [1..] = 1,
        /// A share.
        pub c: Option<f64> [0.0..=1.0] = None,
        /// A text.
        pub name: String [one_of("none", "full")] = "none".into(),
        /// Texts.
        pub ints: Vec<String> = Vec::new(),
        /// A pair.
        pub l: [f32; 2] = [0.0, 1.0],
        /// A path.
        pub output_dir: std::path::PathBuf = "x".into(),
        /// A section of texts.
        pub base: std::collections::BTreeMap<String, String> = std::collections::BTreeMap::new(),
    }
}

/// Text and arguments of one input.
pub fn split(input: &str) -> (&str, Vec<&str>) {
    let (text, arguments) = input.split_once(SEPARATOR).unwrap_or((input, ""));
    (text, arguments.lines().collect())
}

/// Checks one input: YAML text, the line `---args---`, then one argument a line. `Err` says what does not hold.
pub fn check(input: &[u8], print: Printer) -> Result<(), String> {
    let input = String::from_utf8_lossy(input);
    let (text, arguments) = split(&input);
    holds(text, &arguments, print)
}

/// The same with text and arguments apart.
pub fn holds<S: AsRef<str>>(text: &str, arguments: &[S], print: Printer) -> Result<(), String> {
    let written = match Written::parse("run.yaml", text) {
        Ok(written) => written,
        Err(error) => return names_a_line(&error, text),
    };
    reads_back(written.root(), print)?;
    let changed = match (written.with_overrides(arguments), written.with_overrides(arguments)) {
        (Ok(first), Ok(second)) if first == second => first,
        (Err(first), Err(second)) if first.to_string() == second.to_string() => return is_told(&first),
        (first, second) => return Err(format!("not the same twice: {first:?}\n{second:?}")),
    };
    reads_back(changed.root(), print)?;
    let environment = |name: &str| (name.len() % 2 == 1).then(|| format!("value of {name}"));
    let merged = match changed.resolve_with(&environment) {
        Ok(merged) => merged,
        Err(error) => {
            is_told(&error)?;
            return rest_is_checked(&changed);
        }
    };
    reads_back(merged.root(), print)?;
    if merged.to_json(Order::File) != merged.to_json(Order::Sorted) {
        return Err("sorting changes the values".to_owned());
    }
    let mut problems = Problems::new();
    let fields = Fields::check(merged.root(), &mut problems);
    if fields.is_none() && problems.is_empty() {
        return Err("neither fields nor a problem".to_owned());
    }
    problems.finish().map_or_else(|error| is_told(&error), |_| Ok(()))
}

/// An error has a text and a status, and a hint that is not empty.
fn is_told(error: &Error) -> Result<(), String> {
    let told =
        !error.to_string().is_empty() && error.exit_code() == 2 && error.hint().is_none_or(|hint| !hint.is_empty());
    if told { Ok(()) } else { Err(format!("not told: {error:?}")) }
}

/// What is wrong with references is told beside what is wrong with the rest, never instead of it.
fn rest_is_checked(changed: &Written) -> Result<(), String> {
    let check = |merged: &config::Merged| {
        let mut problems = Problems::new();
        Fields::check(merged.root(), &mut problems);
        problems
    };
    let (Err(alone), Err(both)) = (changed.resolve(), changed.resolve_or_check(check)) else { return Ok(()) };
    let (Error::Problems(alone), Error::Problems(both)) = (&alone, &both) else {
        return Err("other errors".to_owned());
    };
    let is_reference = |problem: &&config::Problem| matches!(problem.kind, ProblemKind::Reference(_));
    for problem in both.iter().filter(is_reference) {
        if !alone.iter().any(|known| known == problem) {
            return Err(format!("not told alone: {problem:?}"));
        }
    }
    for broken in alone.iter() {
        let is_value = |kind: &ProblemKind| matches!(kind, ProblemKind::Value { .. } | ProblemKind::Refused { .. });
        if let Some(noise) = both.iter().find(|problem| problem.key == broken.key && is_value(&problem.kind)) {
            return Err(format!("{broken:?} is told again: {noise:?}"));
        }
        // A reference is left out for the problem of the key that it reads.
        if both.iter().all(|problem| problem == broken || is_reference(&problem)) && !both.iter().any(|p| p == broken) {
            return Err(format!("{broken:?} is lost: {both}"));
        }
    }
    Ok(())
}

/// An error of a file shows its places, on lines that the file has, in the order of the file.
fn names_a_line(error: &Error, text: &str) -> Result<(), String> {
    is_told(error)?;
    let num_lines = text.replace("\r\n", "\n").matches(['\n', '\r']).count() + 1;
    let Error::Problems(problems) = error else { return Err(format!("of another kind: {error:?}")) };
    let shown = error.to_string();
    let num_problems = problems.iter().count();
    let (mut last, mut is_over) = ((0, 0), false);
    for problem in problems.iter() {
        let place = problem.origin.position().filter(|place| (1..=num_lines).contains(&place.line()));
        let Some(place) = place else { return Err(format!("no line of {num_lines}: {problem:?}")) };
        let named = match num_problems {
            1 => format!("--> run.yaml:{}:{}\n", place.line(), place.column()),
            _ => format!("line {}, column {}: ", place.line(), place.column()),
        };
        if !(shown.contains(&named) || num_problems > 50) {
            return Err(format!("{named:?} is not shown: {error}"));
        }
        let at = (place.line(), place.column());
        if at < last || is_over {
            return Err(format!("not in order: {error}"));
        }
        (last, is_over) = (at, matches!(problem.kind, ProblemKind::Yaml(YamlFault::Syntax { .. })));
    }
    Ok(())
}

/// Printed and read again, a tree is itself and prints as before.
pub fn reads_back(root: &Node, print: Printer) -> Result<(), String> {
    // An argument may set the one key that no file may have.
    if root.get("config").is_some() {
        return Ok(());
    }
    for order in [Order::File, Order::Sorted] {
        let printed = print(root, order);
        let read = match Written::parse("printed.yaml", printed.as_str()) {
            Ok(read) => read,
            Err(error) => return Err(format!("{error}\n---- printed\n{printed}")),
        };
        if read.root() != root {
            return Err(format!("---- printed\n{printed}\n---- read\n{read:?}\n---- expected\n{root:?}"));
        }
        let again = print(read.root(), order);
        if again != printed {
            return Err(format!("---- printed\n{printed}\n---- printed again\n{again}"));
        }
    }
    Ok(())
}
