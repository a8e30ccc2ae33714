//! `check`: what measuring needs, as the daemon sees it, and what only the client can see.

use std::env;

use anyhow::Context as _;
use comfy_table::{ContentArrangement, Table, presets};
use migperf_core::job::{Check, CheckItem, CheckState};
use migperf_dbus::Keyed;

use crate::commands::{document, told};
use crate::connect::Session;
use crate::exit::Exit;
use crate::output::{self, harmless};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Shows what is there and what is missing. A daemon that can't be reached is a finding, and decides the exit code.
pub(crate) async fn check(session: anyhow::Result<Session>, json: bool) -> anyhow::Result<Exit> {
    let mut items = vec![client()];
    let exit = match session {
        Ok(session) => {
            let version = session.known(session.manager.version().await)?;
            let state = session.known(session.manager.state_directory().await)?;
            items.push(daemon(&version, &state, session.place.describe()));
            let answer = session.manager.open_check(&Keyed::new()).await;
            let check: Check = document(&session, answer, "the check").await?;
            items.extend(check.items);
            verdict(&items)
        }
        Err(error) => {
            items.push(CheckItem {
                subject: "daemon".to_owned(),
                state: CheckState::Missing,
                found: told(&error),
                remedy: None,
            });
            Exit::of(&error)
        }
    };
    let check = Check { items };
    if json {
        output::line(&serde_json::to_string_pretty(&check).context("can't write the check as JSON")?)?;
    } else {
        output::put(&table(&check, output::display().width))?;
    }
    Ok(exit)
}

fn client() -> CheckItem {
    let place = env::current_exe().map(|path| path.display().to_string()).unwrap_or_else(|_| "unknown".to_owned());
    CheckItem {
        subject: "migperfctl".to_owned(),
        state: CheckState::Ok,
        found: format!("version {VERSION}, {place}"),
        remedy: None,
    }
}

fn daemon(version: &str, state: &str, place: &str) -> CheckItem {
    let same = version == VERSION;
    CheckItem {
        subject: "daemon".to_owned(),
        state: if same { CheckState::Ok } else { CheckState::Limited },
        found: format!("version {version}, {place}, state in {state}"),
        remedy: (!same).then(|| "install migperfctl and migperfd of the same version".to_owned()),
    }
}

fn verdict(items: &[CheckItem]) -> Exit {
    if items.iter().any(|item| item.state == CheckState::Missing) { Exit::Refused } else { Exit::Valid }
}

fn word(state: CheckState) -> &'static str {
    match state {
        CheckState::Ok => "ok",
        CheckState::Limited => "limited",
        CheckState::Missing => "missing",
    }
}

fn table(check: &Check, width: usize) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_width(u16::try_from(width).unwrap_or(u16::MAX));
    table.set_header(["", "what", "found", "what to do"]);
    for item in &check.items {
        // Line breaks within a cell are the daemon's layout, such as the last lines of a log.
        let found: Vec<String> = item.found.lines().map(harmless).collect();
        let remedy = item.remedy.as_deref().map(harmless).unwrap_or_default();
        table.add_row([word(item.state).to_owned(), harmless(&item.subject), found.join("\n"), remedy]);
    }
    format!("{table}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(state: CheckState) -> CheckItem {
        CheckItem {
            subject: "NVIDIA driver".to_owned(),
            state,
            found: "none".to_owned(),
            remedy: Some("install one".to_owned()),
        }
    }

    #[test]
    fn only_what_is_missing_stands_in_the_way() {
        assert_eq!(verdict(&[item(CheckState::Ok), item(CheckState::Limited)]), Exit::Valid);
        assert_eq!(verdict(&[item(CheckState::Ok), item(CheckState::Missing)]), Exit::Refused);
    }

    #[test]
    fn another_version_of_the_daemon_is_a_finding() {
        assert_eq!(daemon(VERSION, "/s", "local").state, CheckState::Ok);
        let other = daemon("99.0.0", "/s", "local");
        assert_eq!(other.state, CheckState::Limited);
        assert!(other.remedy.is_some());
    }

    #[test]
    fn the_table_names_state_and_remedy() {
        let text = table(&Check { items: vec![item(CheckState::Missing)] }, 100);
        let row = text.lines().find(|line| line.contains("NVIDIA driver")).unwrap();
        assert!(row.contains("missing") && row.contains("none") && row.contains("install one"), "{text}");
    }
}
