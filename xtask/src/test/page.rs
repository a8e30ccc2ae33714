//! The HTML report as a browser and a validator see it: pages of all kinds are made by the report's own tests, drawn by a
//! headless Chromium in light, dark, print and at a phone's width, and read by html-validate.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::process;
use crate::workspace::{Workspace, cargo};

/// The validator's version: a newer one may ask for more.
const VALIDATOR: &str = "html-validate@10.17.0";
/// All that it recommends, but for the length of titles: that is the suite's name.
const RULES: &str = r#"{ "extends": ["html-validate:recommended"], "rules": { "long-title": "off" } }"#;
/// What a browser is called: Debian's Chromium, Ubuntu's, Google's.
const BROWSERS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];
/// A page that is wider than its window scrolls sideways, which nobody does on a phone.
const PHONE: u32 = 390;
const DESKTOP: u32 = 1280;
/// A browser that hangs is ended after so many seconds.
const LIMIT: &str = "90";

/// The browser to draw with.
pub(crate) fn browser() -> Option<PathBuf> {
    BROWSERS.iter().find_map(|name| process::on_path(name))
}

/// Makes the pages and looks at each, and at those of docs/results.
///
/// # Errors
/// When a page can't be made, does not look as it should, or is no valid HTML.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    let folder = workspace.target.join("pages");
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("{} can't be removed", folder.display()))?;
    }
    fs::create_dir_all(&folder)?;
    let only = ["test", "--package", "migperf-core", "--test", "report", "--", "--exact"];
    let test = "page::a_page_is_one_file_that_loads_nothing_and_can_be_trusted";
    process::run(cargo().args(only).arg(test).env("MIGPERF_PAGES", &folder))?;
    for results in fs::read_dir(workspace.root.join("docs/results"))? {
        let results = results?;
        for page in ["report.html", "first/report.html"] {
            let (page, name) = (results.path().join(page), results.file_name());
            if page.exists() {
                fs::copy(&page, folder.join(name).with_extension("html"))?;
            }
        }
    }
    let mut pages: Vec<PathBuf> = fs::read_dir(&folder)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    pages.sort();
    ensure!(!pages.is_empty(), "the report's tests have left no page in {}", folder.display());
    validate(workspace, &pages)?;
    let browser = browser().context("no Chromium is installed; `cargo xtask setup --tests` installs it")?;
    for page in &pages {
        draw(&browser, &folder, page).with_context(|| format!("{} does not look right", page.display()))?;
    }
    Ok(())
}

fn validate(workspace: &Workspace, pages: &[PathBuf]) -> Result<()> {
    let home = workspace.target.join("html-validate");
    let program = home.join("node_modules/.bin/html-validate");
    let rules = home.join("rules.json");
    fs::create_dir_all(&home)?;
    fs::write(&rules, RULES)?;
    let read = || process::run(Command::new(&program).arg("--config").arg(&rules).args(pages));
    let version = VALIDATOR.rsplit('@').next().unwrap_or_default();
    let stamp = home.join("version");
    if fs::read_to_string(&stamp).is_ok_and(|found| found == version) && program.exists() {
        return read();
    }
    fs::write(home.join("package.json"), "{ \"private\": true }\n")?;
    let install = ["install", "--no-audit", "--no-fund", "--no-save", "--ignore-scripts", VALIDATOR];
    process::run(Command::new("npm").args(install).current_dir(&home))?;
    fs::write(&stamp, version)?;
    read()
}

/// What the browser measures of a page once it is drawn; the page itself has no script.
const PROBE: &str = "<script>addEventListener('load',()=>{const d=document.documentElement;\
                     const thin=[...document.querySelectorAll('svg')].filter(s=>{const b=s.getBoundingClientRect();return b.width<10||b.height<5}).length;\
                     const p=document.createElement('p');p.id='probe';\
                     p.textContent=[d.scrollWidth-d.clientWidth,thin,document.querySelectorAll('svg').length,getComputedStyle(document.body).backgroundColor].join(' | ');\
                     document.body.append(p)})</script>";

fn draw(browser: &Path, folder: &Path, page: &Path) -> Result<()> {
    let probed = folder.join("probed");
    fs::create_dir_all(&probed)?;
    let name = page.file_stem().and_then(|name| name.to_str()).context("a page without a name")?;
    let copy = probed.join(format!("{name}.html"));
    fs::write(&copy, fs::read_to_string(page)?.replace("</body>", &format!("{PROBE}</body>")))?;
    let mut backgrounds = Vec::new();
    for (width, dark) in [(DESKTOP, false), (DESKTOP, true), (PHONE, false)] {
        let mut command = headless(browser, folder, width);
        if dark {
            command.arg("--blink-settings=preferredColorScheme=0");
        }
        let dom = spoken(command.arg("--dump-dom").arg(&copy))?;
        let probe = dom.split("id=\"probe\">").nth(1).and_then(|rest| rest.split('<').next());
        let probe: Vec<&str> = probe.context("the page was not drawn")?.split(" | ").collect();
        let [surplus, thin, drawings, background] = probe.as_slice() else { bail!("the probe says {probe:?}") };
        ensure!(*surplus == "0", "at {width} px it is {surplus} px wider than its window");
        ensure!(*thin == "0" && *drawings != "0", "{thin} of its {drawings} drawings have no size");
        backgrounds.push((*background).to_owned());
    }
    ensure!(backgrounds[0] != backgrounds[1], "dark is as light: {backgrounds:?}");
    let (shot, print) = (folder.join(format!("{name}.png")), folder.join(format!("{name}.pdf")));
    spoken(headless(browser, folder, DESKTOP).arg(format!("--screenshot={}", shot.display())).arg(page))?;
    spoken(headless(browser, folder, DESKTOP).arg(format!("--print-to-pdf={}", print.display())).arg(page))?;
    for file in [&shot, &print] {
        let length = fs::metadata(file).with_context(|| format!("the browser made no {}", file.display()))?.len();
        ensure!(length > 10_000, "{} has {length} bytes only", file.display());
    }
    Ok(())
}

fn headless(browser: &Path, folder: &Path, width: u32) -> Command {
    let mut command = Command::new("timeout");
    command.arg(LIMIT).arg(browser);
    command.args(["--headless", "--disable-gpu", "--no-first-run", "--enable-logging=stderr", "--log-level=0"]);
    command.args(["--disable-background-networking", "--disable-component-update", "--disable-sync"]);
    command.arg(format!("--user-data-dir={}", folder.join("profile").display()));
    command.arg(format!("--window-size={width},900"));
    if crate::machine::is_root() {
        // Chromium's own sandbox refuses to run as root.
        command.arg("--no-sandbox");
    }
    command
}

/// Runs the browser; a line on the page's console is a failure.
fn spoken(command: &mut Command) -> Result<String> {
    let output = command.output().context("the browser could not be started")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    if let Some(line) = errors.lines().find(|line| line.contains("CONSOLE")) {
        bail!("the page says on its console: {line}");
    }
    ensure!(output.status.success(), "the browser failed ({}): {errors}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
