//! Lists, printed page by page: aligned columns, or JSON in the shape of the API.

use super::style::{self, clean};
use super::{CommandContext, Failure, Outcome, PageOptions, pretty, write};
use api::{Page, UnreadableView};
use serde::Serialize;
use std::future::Future;
use std::io::Write;

/// The largest page that the server returns.
const PAGE_MAX: u32 = 500;

/// Fetches page after page and prints each as it arrives, so a long list is never in memory as a whole.
pub async fn list<T, F, R>(
    asking: &CommandContext,
    part: &PageOptions,
    header: &[&str],
    row: fn(&T) -> Vec<String>,
    fetch: F,
) -> Outcome
where
    T: Serialize,
    F: Fn(u32, Option<String>) -> R,
    R: Future<Output = Result<Page<T>, client::Error>>,
{
    let mut left = if part.all { u32::MAX } else { part.limit };
    let mut cursor = part.cursor.clone();
    let mut unreadable = Vec::new();
    let mut printer = Printer { header, widths: Vec::new(), count: 0, json: asking.json };
    loop {
        let page = match fetch(left.min(PAGE_MAX), cursor.clone()).await {
            Ok(page) => page,
            Err(error) => {
                printer.stop()?;
                return Err(error.into());
            }
        };
        left -= left.min(page.data.len() as u32);
        printer.page(&page.data, row)?;
        unreadable.extend(page.unreadable);
        cursor = page.next;
        if cursor.is_none() || left == 0 {
            break;
        }
    }
    printer.end(cursor.as_deref(), &unreadable)?;
    say_unreadable(asking, &unreadable);
    match &cursor {
        Some(cursor) => asking.say(&format!("there are more: use `--all`, or `--cursor {cursor}`")),
        None if printer.count == 0 && unreadable.is_empty() => asking.say("nothing found"),
        None => {}
    }
    Ok(())
}

/// Names the runs that a list left out because they cannot be read.
pub fn say_unreadable(asking: &CommandContext, unreadable: &[UnreadableView]) {
    for run in unreadable {
        asking.say(&format!("warning: {} cannot be read: {} ({})", run.run_id, clean(&run.message), clean(&run.code)));
    }
}

struct Printer<'h> {
    header: &'h [&'h str],
    /// Column widths, from the first page.
    widths: Vec<usize>,
    count: usize,
    json: bool,
}

impl Printer<'_> {
    fn page<T: Serialize>(&mut self, items: &[T], row: fn(&T) -> Vec<String>) -> Result<(), Failure> {
        let mut out = std::io::stdout().lock();
        if self.json {
            for item in items {
                out.write_all(if self.count == 0 { b"{\"data\": [\n" } else { b",\n" })?;
                out.write_all(pretty(item).as_bytes())?;
                self.count += 1;
            }
            return Ok(());
        }
        let rows: Vec<Vec<String>> = items.iter().map(row).collect();
        if self.count == 0 && !rows.is_empty() {
            let header: Vec<String> = self.header.iter().map(|h| (*h).to_owned()).collect();
            let all = || std::iter::once(&header).chain(&rows);
            self.widths = (0..header.len()).map(|i| all().map(|r| r[i].chars().count()).max().unwrap_or(0)).collect();
            out.write_all(line(&header, &self.widths, None).as_bytes())?;
        }
        let status = self.header.iter().position(|h| *h == "STATUS").filter(|_| style::has_colours());
        for row in &rows {
            out.write_all(line(row, &self.widths, status).as_bytes())?;
        }
        self.count += rows.len();
        Ok(out.flush()?)
    }

    fn end(&self, next: Option<&str>, unreadable: &[UnreadableView]) -> Result<(), Failure> {
        if !self.json {
            return Ok(());
        }
        let begin = if self.count == 0 { "{\"data\": [" } else { "\n" };
        let next = serde_json::to_string(&next).unwrap_or_default();
        let unreadable = match unreadable {
            [] => String::new(),
            some => format!(", \"unreadable\": {}", serde_json::to_string(some).unwrap_or_default()),
        };
        write(&format!("{begin}], \"next\": {next}{unreadable}}}"))
    }

    /// Ends the line after a failure: half a list is not JSON, but the error must begin on a line of its own.
    fn stop(&self) -> Result<(), Failure> {
        if self.json && self.count > 0 {
            return write("");
        }
        Ok(())
    }
}

/// One row. The last column is not padded; `coloured` is the column with the status.
fn line(cells: &[String], widths: &[usize], coloured: Option<usize>) -> String {
    let mut text = String::new();
    for (i, (cell, width)) in cells.iter().zip(widths).enumerate() {
        let cell = clean(cell);
        let padding = width.saturating_sub(cell.chars().count());
        match coloured {
            Some(column) if column == i => text.push_str(&style::paint(&cell, style::colour(&cell), true)),
            _ => text.push_str(&cell),
        }
        if i + 1 < cells.len() {
            text.extend(std::iter::repeat_n(' ', padding + 2));
        }
    }
    let end = text.trim_end().len();
    text.truncate(end);
    text.push('\n');
    text
}

/// A table as part of other text.
pub fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let header_row: Vec<String> = header.iter().map(|h| (*h).to_owned()).collect();
    let all = || std::iter::once(&header_row).chain(rows);
    let widths: Vec<usize> =
        (0..header.len()).map(|i| all().map(|r| r[i].chars().count()).max().unwrap_or(0)).collect();
    let status = header.iter().position(|h| *h == "STATUS").filter(|_| style::has_colours());
    let mut text = line(&header_row, &widths, None);
    rows.iter().for_each(|row| text.push_str(&line(row, &widths, status)));
    text
}

/// Names and values, one pair a line; pairs without a value are left out.
pub fn fields(pairs: &[(&str, Option<String>)]) -> String {
    let shown: Vec<(&str, &String)> = pairs.iter().filter_map(|(name, value)| Some((*name, value.as_ref()?))).collect();
    let width = shown.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    shown.iter().map(|(name, value)| format!("{name:<width$}  {}\n", clean(value))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_nothing_trails() {
        let rows = [vec!["a".into(), "ünï".into(), String::new()], vec!["long".into(), "b\u{7}".into(), "c".into()]];
        assert_eq!(table(&["X", "NAME", "Z"], &rows), "X     NAME  Z\na     ünï\nlong  b·    c\n");
        assert_eq!(fields(&[("a", Some("1".into())), ("bcd", Some("2".into())), ("e", None)]), "a    1\nbcd  2\n");
    }
}
