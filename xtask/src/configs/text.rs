//! The text of a config file, written from top to bottom: remarks, headings, keys, sections.

/// Columns of a remark; commands may be longer.
const WIDTH: usize = 100;

/// A file that is being written.
#[derive(Default)]
pub(super) struct Text {
    text: String,
}

impl Text {
    /// A paragraph of remarks, filled up to the width.
    pub(super) fn remark(&mut self, words: &str) {
        let mut line = "#".to_owned();
        for word in words.split_whitespace() {
            if line.len() + 1 + word.len() > WIDTH {
                self.line(&line);
                "#".clone_into(&mut line);
            }
            line.push(' ');
            line.push_str(word);
        }
        self.line(&line);
    }

    /// A command that can be copied from the remarks.
    pub(super) fn command(&mut self, command: &str) {
        self.line(&format!("#   {command}"));
    }

    /// An empty line of remarks.
    pub(super) fn gap(&mut self) {
        self.line("#");
    }

    /// An empty line.
    pub(super) fn blank(&mut self) {
        self.line("");
    }

    /// What the keys that follow are about.
    pub(super) fn heading(&mut self, title: &str) {
        self.blank();
        self.remark(title);
    }

    /// A key with a value.
    pub(super) fn key(&mut self, key: &str, value: &str) {
        self.line(&format!("{key}: {value}"));
    }

    /// A key with a value and a short note behind it.
    pub(super) fn noted(&mut self, key: &str, value: &str, note: &str) {
        self.line(&format!("{key}: {value}  # {note}"));
    }

    /// A key with a section.
    pub(super) fn section(&mut self, key: &str, section: Section) {
        self.line(&format!("{key}:"));
        for line in section.lines {
            self.line(&format!("  {line}"));
        }
    }

    /// A key with a list of sections.
    pub(super) fn list(&mut self, key: &str, sections: Vec<Section>) {
        self.line(&format!("{key}:"));
        for section in sections {
            for (i, line) in section.lines.iter().enumerate() {
                self.line(&format!("  {} {line}", if i == 0 { "-" } else { " " }));
            }
        }
    }

    fn line(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    /// The whole file.
    pub(super) fn finish(self) -> String {
        self.text
    }
}

/// The keys of a section.
#[derive(Default)]
pub(super) struct Section {
    lines: Vec<String>,
}

impl Section {
    /// A component's section.
    pub(super) fn of(component: &str) -> Self {
        Self::default().key("_component_", component)
    }

    /// A key with a value.
    pub(super) fn key(mut self, key: &str, value: &str) -> Self {
        self.lines.push(format!("{key}: {value}"));
        self
    }

    /// A key with a value and a short note behind it.
    pub(super) fn noted(self, key: &str, value: &str, note: &str) -> Self {
        self.key(key, &format!("{value}  # {note}"))
    }

    /// A key with a section inside this one.
    pub(super) fn section(mut self, key: &str, section: Self) -> Self {
        self.lines.push(format!("{key}:"));
        self.lines.extend(section.lines.into_iter().map(|line| format!("  {line}")));
        self
    }

    /// A key with a list of words, one a line.
    pub(super) fn list(mut self, key: &str, words: &[String]) -> Self {
        self.lines.push(format!("{key}:"));
        self.lines.extend(words.iter().map(|word| format!("  - {word}")));
        self
    }

    /// The same section with `change` made to it, if `wanted`.
    pub(super) fn when(self, wanted: bool, change: impl FnOnce(Self) -> Self) -> Self {
        if wanted { change(self) } else { self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_written_as_one_would_by_hand() {
        let mut text = Text::default();
        text.remark(&"word ".repeat(30));
        text.key("a", "1");
        text.heading("Part");
        let inner = Section::default().noted("x", "2", "two");
        text.section("b", Section::of("c.D").section("inner", inner).list("files", &["f".into(), "g".into()]));
        text.list("l", vec![Section::default().key("p", "1").key("q", "2"), Section::default().key("p", "3")]);
        let file = text.finish();
        assert!(file.lines().all(|line| line.len() <= WIDTH && line.trim_end() == line), "{file}");
        let from_heading = &file[file.find("\n\n").unwrap()..];
        assert_eq!(
            from_heading,
            "\n\n# Part\nb:\n  _component_: c.D\n  inner:\n    x: 2  # two\n  files:\n    - f\n    - g\nl:\n  - p: 1\n    \
             q: 2\n  - p: 3\n"
        );
    }
}
