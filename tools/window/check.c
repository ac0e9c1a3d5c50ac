/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wherry window check: does a window show the GPU's memory and nothing else?
 *
 * Each test runs in a process of its own, with its own engine, memory and windows: a test that
 * crashes or hangs fails alone.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "output.h"
#include "pattern.h"
#include "window/window.h"

#define LENGTH (1u << 20) /* of a test's memory, bytes */
#define SECONDS 120 /* limit of one test */
#define CHUNK UINT64_C(1000)

/* What a test's process reports, in shared memory. */
struct report {
	int error; /* no such memory, or no window on it; `text` has the reason */
	bool done;
	enum window_outcome outcome;
	char text[WINDOW_TEXT];
	char by[WINDOW_TEXT]; /* how windows are opened, and the backends' reasons */
};

struct check_totals {
	unsigned passed, failed, waived;
	struct progress progress; /* in tests */
	char label[96];
	char by[WINDOW_TEXT]; /* of the current memory; "": it is missing */
};

/* ---- for the tests --------------------------------------------------------------------------- */

bool window_expect(struct window_try *try, bool good, const char *format, ...)
{
	va_list list;

	if (good || try->outcome == WINDOW_FAILED)
		return good;
	try->outcome = WINDOW_FAILED;
	va_start(list, format);
	vsnprintf(try->text, sizeof(try->text), format, list);
	va_end(list);
	return false;
}

bool window_called(struct window_try *try, int error, const char *what)
{
	return window_expect(try, !error, "%s: %s (%s)", what, wh_error_text(), strerror(-error));
}

void window_waive(struct window_try *try, const char *format, ...)
{
	va_list list;

	if (try->outcome == WINDOW_FAILED)
		return;
	try->outcome = WINDOW_WAIVED;
	va_start(list, format);
	vsnprintf(try->text, sizeof(try->text), format, list);
	va_end(list);
}

bool window_open_in(struct window_try *try, uint64_t offset, uint64_t length,
		    struct wh_window **out)
{
	char what[96];

	*out = NULL;
	snprintf(what, sizeof(what), "a window onto %llu bytes at offset %llu",
		 (unsigned long long)length, (unsigned long long)offset);
	return window_called(try, window_fixture_window(&try->fixture, offset, length, out), what);
}

bool window_close_in(struct window_try *try, struct wh_window *window)
{
	return window_called(try, wh_window_close(window), "closing a window");
}

struct wh_window_info window_info_of(struct window_try *try, struct wh_window *window)
{
	struct wh_window_info info = { .size = sizeof(info) };

	window_called(try, wh_window_info(window, &info), "wh_window_info");
	return info;
}

uint64_t window_fresh(void)
{
	static _Atomic uint64_t last;

	return ++last;
}

bool window_round_trip(struct window_try *try, struct wh_window *window, uint64_t offset,
		       uint64_t at, uint64_t length)
{
	unsigned char *host = malloc(length ? length : 1),
		      *gpu = try->fixture.address + offset + at;
	uint64_t number = window_fresh(), start = offset + at;
	size_t same;
	bool good = window_expect(try, host, "no memory");

	if (good)
		pattern_fill(host, length, 0, number);
	good = good &&
	       window_called(try, wh_window_copy_to(window, at, host, length),
			     "wh_window_copy_to") &&
	       window_called(try, wh_window_flush(window), "wh_window_flush");
	if (good)
		memset(host, 0, length);
	good = good && window_expect(try, !gpu_copy(try->fixture.gpu, host, gpu, length), "%s",
				     try->fixture.gpu->text);
	same = good ? pattern_check(host, length, 0, number) : 0;
	good = good && window_expect(try, same == PATTERN_RIGHT,
				     "byte %zu of %llu at offset %llu: CUDA does not see what was "
				     "written through the window",
				     same, (unsigned long long)length, (unsigned long long)start);
	number = window_fresh();
	if (good)
		pattern_fill(host, length, 0, number);
	good = good && window_expect(try, !gpu_copy(try->fixture.gpu, gpu, host, length), "%s",
				     try->fixture.gpu->text);
	if (good)
		memset(host, 0, length);
	good = good && window_called(try, wh_window_copy_from(window, at, host, length),
				     "wh_window_copy_from");
	same = good ? pattern_check(host, length, 0, number) : 0;
	good = good && window_expect(try, same == PATTERN_RIGHT,
				     "byte %zu of %llu at offset %llu: the window does not show "
				     "what CUDA wrote",
				     same, (unsigned long long)length, (unsigned long long)start);
	/* Short enough to be loads instead of copies by the copy engine. */
	for (uint64_t done = 0; good && done < length; done += CHUNK) {
		uint64_t chunk = length - done < CHUNK ? length - done : CHUNK, from = start + done;

		good = window_called(try, wh_window_copy_from(window, at + done, host, chunk),
				     "wh_window_copy_from") &&
		       window_expect(try, pattern_check(host, chunk, done, number) == PATTERN_RIGHT,
				     "%llu bytes at offset %llu: loads through the window do not "
				     "give what CUDA wrote",
				     (unsigned long long)chunk, (unsigned long long)from);
	}
	free(host);
	return good;
}

bool window_reachable(const void *address)
{
	int ends[2];
	bool reached;

	if (pipe(ends))
		return false;
	reached = write(ends[1], address, 1) == 1;
	close(ends[0]);
	close(ends[1]);
	return reached;
}

/* ---- a test's process ------------------------------------------------------------------------ */

/* Open one window on all of the memory: without it no test makes sense. */
static int check_window(struct window_fixture *fixture, struct report *report)
{
	struct wh_window_info info = { .size = sizeof(info) };
	struct wh_window *window;
	int error = window_fixture_window(fixture, 0, fixture->length, &window);
	size_t used;

	if (!error)
		error = wh_window_info(window, &info);
	if (error) {
		snprintf(report->text, sizeof(report->text), "%s", wh_error_text());
		return error;
	}
	window_describe(&info, report->by, sizeof(report->by));
	used = strlen(report->by);
	if (strchr(info.said, ';'))
		snprintf(report->by + used, sizeof(report->by) - used, " (%.400s)", info.said);
	return wh_window_close(window);
}

/* Run a test in this process; `test` NULL: only find out if a window opens. */
static void check_serve(struct report *report, const struct window_choices *choices,
			const struct memory *memory, const struct window_case *test)
{
	struct window_try try = { .outcome = WINDOW_PASSED };
	int error;

	alarm(SECONDS);
	report->error = window_fixture_open(&try.fixture, choices, memory, LENGTH, report->text);
	if (report->error)
		return;
	if (test)
		test->run(&try);
	else
		report->error = check_window(&try.fixture, report);
	if (!report->error)
		memcpy(report->text, try.text, sizeof(report->text));
	report->outcome = try.outcome;
	/* A failed test may leave a window open, so closing the engine would fail, too. */
	if (try.outcome != WINDOW_FAILED && !report->error) {
		error = window_fixture_close(&try.fixture, report->text);
		if (error)
			report->outcome = WINDOW_FAILED;
	}
	report->done = true;
}

/* Draw the progress while a test's process runs. No thread can do that: this process forks more
 * children. */
static void check_watch(pid_t child, struct check_totals *check_totals)
{
	struct pollfd ended = { .fd = (int)syscall(SYS_pidfd_open, child, 0), .events = POLLIN };

	if (ended.fd < 0)
		return;
	while (poll(&ended, 1, 100) == 0)
		progress_move(&check_totals->progress,
			      check_totals->passed + check_totals->failed + check_totals->waived);
	close(ended.fd);
}

/* Run a test in a process of its own and report its outcome. */
static void check_run_apart(struct report *report, const struct window_choices *choices,
			    const struct memory *memory, const struct window_case *test,
			    struct check_totals *check_totals)
{
	int status = 0;
	pid_t child;

	memset(report, 0, sizeof(*report));
	snprintf(check_totals->label, sizeof(check_totals->label), "%s: %s", memory->name,
		 test ? test->name : "a window");
	progress_move(&check_totals->progress,
		      check_totals->passed + check_totals->failed + check_totals->waived);
	fflush(NULL);
	child = fork();
	if (!child) {
		check_serve(report, choices, memory, test);
		exit(report->done && report->outcome != WINDOW_FAILED ? 0 : 1);
	}
	if (child > 0 && check_totals->progress.shown)
		check_watch(child, check_totals);
	while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR)
		;
	if (child < 0)
		snprintf(report->text, sizeof(report->text), "fork: %s", strerror(errno));
	else if (WIFSIGNALED(status))
		snprintf(report->text, sizeof(report->text),
			 WTERMSIG(status) == SIGALRM ? "did not end within %d s" :
						       "ended by signal %d",
			 WTERMSIG(status) == SIGALRM ? SECONDS : WTERMSIG(status));
	else if (!status && report->done)
		return;
	else if (report->done && report->outcome != WINDOW_FAILED && !report->error)
		snprintf(report->text, sizeof(report->text), "its process exited with status %d",
			 WEXITSTATUS(status));
	report->outcome = WINDOW_FAILED;
}

/* ---- all of them ----------------------------------------------------------------------------- */

static void check_report(const struct window_choices *choices, const struct memory *memory,
			 const struct window_case *test, const struct report *report,
			 struct check_totals *check_totals)
{
	static const char *const words[] = { "passed", "FAILED", "waived" };
	static const char *const plain[] = { "passed", "failed", "waived" };
	bool passed = report->outcome == WINDOW_PASSED;
	unsigned *counts[] = { &check_totals->passed, &check_totals->failed,
			       &check_totals->waived };
	json_t *json;

	++*counts[report->outcome];
	progress_wipe();
	fprintf(choices->table, "  %s  %-15s %s\n", words[report->outcome], test->name,
		passed ? test->what : report->text);
	fflush(choices->table);
	json = json_pack("{s:s, s:s, s:s, s:s}", "test", test->name, "memory", memory->name,
			 "outcome", plain[report->outcome], "what", test->what);
	json_object_set_new(json, "by", output_text(check_totals->by));
	json_object_set_new(json, "reason", passed ? json_null() : output_text(report->text));
	json_array_append_new(choices->results, json);
}

static bool case_is_wanted(const struct window_choices *choices, const struct window_case *test)
{
	return !choices->only || !strcmp(choices->only, test->name);
}

/* The tests of one memory. `missing`: why it cannot be allocated; then all are waived. */
static void check_memory(struct window_choices *choices, const struct memory *memory,
			 struct report *report, const char *missing,
			 struct check_totals *check_totals)
{
	const struct window_case *const tables[] = { window_cases, window_process_cases };

	for (size_t t = 0; t < sizeof(tables) / sizeof(tables[0]); t++)
		for (const struct window_case *test = tables[t]; test->name; test++) {
			if (!case_is_wanted(choices, test))
				continue;
			if (missing) {
				report->outcome = WINDOW_WAIVED;
				snprintf(report->text, sizeof(report->text), "%s", missing);
			} else {
				check_run_apart(report, choices, memory, test, check_totals);
			}
			check_report(choices, memory, test, report, check_totals);
		}
}

/* How many tests each memory gets. */
static unsigned check_count(const struct window_choices *choices)
{
	unsigned count = 0;

	for (const struct window_case *test = window_cases; test->name; test++)
		count += case_is_wanted(choices, test);
	for (const struct window_case *test = window_process_cases; test->name; test++)
		count += case_is_wanted(choices, test);
	return count;
}

static int check_memories(struct window_choices *choices, struct report *report,
			  struct check_totals *check_totals)
{
	for (size_t i = 0; i < choices->memory_count; i++) {
		const struct memory *memory = &choices->memories[i];
		char missing[WINDOW_TEXT] = "";

		check_run_apart(report, choices, memory, NULL, check_totals);
		progress_wipe();
		/* Kinds that were not requested may be missing, on old drivers. */
		if (report->error == -EOPNOTSUPP && !choices->memories_given && i)
			memcpy(missing, report->text, sizeof(missing));
		else if (report->error)
			return window_fail(memory, report->error, report->text);
		else if (report->outcome == WINDOW_FAILED)
			return window_fail(memory, -EIO, report->text);
		memcpy(check_totals->by, report->by, sizeof(check_totals->by));
		fprintf(choices->table, "%s%s%s\n", memory->name, *missing ? "" : ": ",
			check_totals->by);
		check_memory(choices, memory, report, *missing ? missing : NULL, check_totals);
	}
	return EXIT_PASS;
}

int window_check(struct window_choices *choices)
{
	unsigned tests = check_count(choices);
	struct check_totals check_totals = { 0 };
	struct report *report;
	int code;

	if (!tests)
		return usage_error("--test: no test '%s'; wherry window check lists them all",
				   choices->only);
	report = mmap(NULL, sizeof(*report), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		      0);
	if (report == MAP_FAILED)
		return fail(errno, "mmap: %s", strerror(errno));
	progress_start_steps(&check_totals.progress, check_totals.label,
			     tests * choices->memory_count, false);
	code = check_memories(choices, report, &check_totals);
	progress_end(&check_totals.progress);
	munmap(report, sizeof(*report));
	if (code)
		return code;
	fprintf(choices->table, "%u tests: %u passed, %u failed, %u waived\n",
		check_totals.passed + check_totals.failed + check_totals.waived,
		check_totals.passed, check_totals.failed, check_totals.waived);
	if (check_totals.failed)
		return fail(EIO, "%u of the tests failed", check_totals.failed);
	/* If every test was waived, nothing has been shown. */
	if (!check_totals.passed)
		return fail(ENODEV, "no test could be run");
	return EXIT_PASS;
}
