//! Golden transcripts: what each command prints for its help, a success and failures, at
//! 80 and 120 columns of a real pseudo-terminal and without a terminal. A change of a
//! screen is a change of a file in `tests/transcripts/golden`, to be read as a user would:
//! `INSTA_UPDATE=always cargo test --test transcripts` writes them.

mod cases;
mod terminal;
mod world;

use cases::CASES;
use terminal::{Screen, run};
use world::World;

/// Each command in one file.
#[tokio::test(flavor = "multi_thread")]
async fn every_screen_is_as_it_was() {
    let world = World::new().await;
    let mut changed = Vec::new();
    for case in CASES {
        let mut text = String::new();
        for line in
            [format!("{} --help", case.command)].iter().map(String::as_str).chain(case.lines.iter().copied())
        {
            for screen in [Screen::Columns(80), Screen::Columns(120), Screen::File] {
                world.reset().await;
                let shown = run(&world, line, screen).await;
                text.push_str(&format!("──── {screen} $ serin {line}\n{}", world.normalised(&shown)));
            }
        }
        let name = case.command.replace(' ', "_");
        let compare = || {
            let mut settings = insta::Settings::clone_current();
            settings.set_snapshot_path("golden");
            settings.set_prepend_module_to_snapshot(false);
            settings.set_omit_expression(true);
            settings.bind(|| insta::assert_snapshot!(name.as_str(), text));
        };
        // All that changed, not only the first.
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(compare)).is_err() {
            changed.push(case.command);
        }
    }
    assert!(changed.is_empty(), "other screens of: {}", changed.join(", "));
}

/// A command without a transcript is one that nobody has looked at.
#[tokio::test]
async fn every_command_has_a_transcript() {
    let world = World::new().await;
    let help = run(&world, "--help", Screen::File).await;
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = listed
        .take_while(|line| !line.is_empty())
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names: Vec<&str> =
        names.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help").collect();
    assert!(names.len() > 20, "{help}");
    let missing: Vec<&&str> = names
        .iter()
        .filter(|name| !CASES.iter().any(|case| case.command.split(' ').next() == Some(**name)))
        .collect();
    assert!(missing.is_empty(), "no transcript of {missing:?}");
}
