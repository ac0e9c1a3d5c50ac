/* SPDX-License-Identifier: Apache-2.0 */
/* Results of wherry bench: what is taken becomes a page whose elements are ours, whatever the texts
 * are, and none of its rows has changed when it is held against itself. */
#include <jansson.h>

#include "../../tools/bench/report.h"
#include "fuzz.h"

#define ROWS 200 /* the work grows with the square of this */

/* Every '<' opens or closes an element that the page's maker writes, and no quote of a text ends an
 * attribute: letters that mean something stand as numbers. */
static void check_elements(const char *page)
{
	static const char *const names[] = {
		"a ",      "b>",      "body",     "br>",     "caption>", "circle ", "code>",
		"dd>",     "details", "div ",     "div>",    "dl>",      "dt>",     "figcaption>",
		"figure>", "g ",      "g>",       "h1>",     "h2",       "h3>",     "head",
		"header>", "html",    "li",       "link ",   "main>",    "meta ",   "nav",
		"p>",      "p ",      "path ",    "path>",   "rect ",    "rect>",   "section",
		"small",   "span",    "style>",   "sub>",    "summary>", "sup>",    "svg",
		"table",   "tbody>",  "td",       "text ",   "text>",    "th",      "title>",
		"tr>",     "ul",      "!DOCTYPE", "circle>", "a>",
	};
	const char *at = page;

	while ((at = strchr(at, '<'))) {
		bool known = false;

		at += at[1] == '/' ? 2 : 1;
		for (size_t i = 0; !known && i < sizeof(names) / sizeof(names[0]); i++)
			known = !strncmp(at, names[i], strlen(names[i]));
		check(known);
	}
	check(strstr(page, "</style>") == strstr(strstr(page, "<style>"), "</style>"));
}

/* Drawings have numbers for their places. */
static void check_drawings(const char *page)
{
	static const char *const names[] = { "<path ", "<circle ", "<rect " };

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		for (const char *at = page; (at = strstr(at, names[i])); at++) {
			char element[256];

			snprintf(element, sizeof(element), "%.*s", (int)strcspn(at, ">"), at);
			check(!strstr(element, "nan") && !strstr(element, "inf"));
		}
}

static void make_page(struct report *report)
{
	char *text = NULL;
	size_t length;
	FILE *out = open_memstream(&text, &length);

	check(out && report_write(report, out) == 0 && !fclose(out));
	check(strlen(text) == length);
	check_elements(text);
	check_drawings(text);
	free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct report report = { 0 };
	struct report_counts counts;
	char why[REPORT_WHY];
	json_t *root = json_loadb((const char *)data, size, JSON_REJECT_DUPLICATES, NULL);

	if (!root)
		return 0;
	if (!report_add(&report.now, "now", json_incref(root), why) &&
	    report.now.row_count < ROWS) {
		make_page(&report);
		check(!report_add(&report.before, "before", json_incref(root), why));
		report.has_baseline = true;
		make_page(&report);
		report_count(&report, &counts);
		check(counts.change[REPORT_BETTER] == 0 && counts.change[REPORT_WORSE] == 0);
	}
	free(report.matches);
	report_free(&report.now);
	report_free(&report.before);
	json_decref(root);
	return 0;
}
