/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wherry window check: does a window show the GPU's memory and nothing else, whatever is done?
 *
 * Each test has a process of its own, with an engine, memory and windows of its own: one that
 * crashes or hangs has failed, and the others are not touched by it.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "output.h"
#include "pattern.h"
#include "window/window.h"

#define LENGTH (1u << 20) /* of the memory of a test */
#define SECONDS 120 /* a test that takes longer hangs */
#define PIECE UINT64_C(1000)

/* What a test's process leaves, in memory that both have. */
struct report {
	int error; /* there is no such memory or no window onto it; `text` says why */
	bool done;
	enum window_outcome outcome;
	char text[WINDOW_TEXT];
	char by[WINDOW_TEXT]; /* how windows are made, and what the backends said */
};

struct tally {
	unsigned passed, failed, waived;
	struct progress progress; /* in tests */
	char label[96];
	char by[WINDOW_TEXT]; /* of the memory that it is the turn of; "": there is none */
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
	return window_called(try, window_place_window(&try->place, offset, length, out), what);
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
	unsigned char *host = malloc(length ? length : 1), *gpu = try->place.address + offset + at;
	uint64_t number = window_fresh(), place = offset + at;
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
	good = good && window_expect(try, !gpu_copy(try->place.gpu, host, gpu, length), "%s",
				     try->place.gpu->text);
	same = good ? pattern_check(host, length, 0, number) : 0;
	good = good && window_expect(try, same == PATTERN_RIGHT,
				     "byte %zu of %llu at offset %llu: CUDA does not see what was "
				     "written through the window",
				     same, (unsigned long long)length, (unsigned long long)place);
	number = window_fresh();
	if (good)
		pattern_fill(host, length, 0, number);
	good = good && window_expect(try, !gpu_copy(try->place.gpu, gpu, host, length), "%s",
				     try->place.gpu->text);
	if (good)
		memset(host, 0, length);
	good = good && window_called(try, wh_window_copy_from(window, at, host, length),
				     "wh_window_copy_from");
	same = good ? pattern_check(host, length, 0, number) : 0;
	good = good && window_expect(try, same == PATTERN_RIGHT,
				     "byte %zu of %llu at offset %llu: the window does not show "
				     "what CUDA wrote",
				     same, (unsigned long long)length, (unsigned long long)place);
	/* Pieces so short that they do not go by the copy engine. */
	for (uint64_t done = 0; good && done < length; done += PIECE) {
		uint64_t piece = length - done < PIECE ? length - done : PIECE, from = place + done;

		good = window_called(try, wh_window_copy_from(window, at + done, host, piece),
				     "wh_window_copy_from") &&
		       window_expect(try, pattern_check(host, piece, done, number) == PATTERN_RIGHT,
				     "%llu bytes at offset %llu: loads through the window do not "
				     "give what CUDA wrote",
				     (unsigned long long)piece, (unsigned long long)from);
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

/* The window that stands for all others: if that cannot be had, no test makes sense. */
static int look(struct window_place *place, struct report *report)
{
	struct wh_window_info info = { .size = sizeof(info) };
	struct wh_window *window;
	int error = window_place_window(place, 0, place->length, &window);
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

/* test NULL: only whether there is anything to test. */
static void serve(struct report *report, const struct window_choices *choices,
		  const struct memory *memory, const struct window_case *test)
{
	struct window_try try = { .outcome = WINDOW_PASSED };
	int error;

	alarm(SECONDS);
	report->error = window_place_open(&try.place, choices, memory, LENGTH, report->text);
	if (report->error)
		return;
	if (test)
		test->run(&try);
	else
		report->error = look(&try.place, report);
	if (!report->error)
		memcpy(report->text, try.text, sizeof(report->text));
	report->outcome = try.outcome;
	/* A window that a failed test has left open holds the engine open, which is no news. */
	if (try.outcome != WINDOW_FAILED && !report->error) {
		error = window_place_close(&try.place, report->text);
		if (error)
			report->outcome = WINDOW_FAILED;
	}
	report->done = true;
}

/* Draw while a test's process lives: a thread may not, for there are more processes to be made. */
static void watch(pid_t child, struct tally *tally)
{
	struct pollfd ended = { .fd = pidfd_open(child, 0), .events = POLLIN };

	if (ended.fd < 0)
		return;
	while (poll(&ended, 1, 100) == 0)
		progress_move(&tally->progress, tally->passed + tally->failed + tally->waived);
	close(ended.fd);
}

/* Run a test in a process of its own, and say what became of it. */
static void run_apart(struct report *report, const struct window_choices *choices,
		      const struct memory *memory, const struct window_case *test,
		      struct tally *tally)
{
	int status = 0;
	pid_t child;

	memset(report, 0, sizeof(*report));
	snprintf(tally->label, sizeof(tally->label), "%s: %s", memory->name,
		 test ? test->name : "a window");
	progress_move(&tally->progress, tally->passed + tally->failed + tally->waived);
	fflush(NULL);
	child = fork();
	if (!child) {
		serve(report, choices, memory, test);
		exit(report->done && report->outcome != WINDOW_FAILED ? 0 : 1);
	}
	if (child > 0 && tally->progress.shown)
		watch(child, tally);
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
		snprintf(report->text, sizeof(report->text), "its process ended with status %d",
			 WEXITSTATUS(status));
	report->outcome = WINDOW_FAILED;
}

/* ---- all of them ----------------------------------------------------------------------------- */

static void tell(const struct window_choices *choices, const struct memory *memory,
		 const struct window_case *test, const struct report *report, struct tally *tally)
{
	static const char *const words[] = { "passed", "FAILED", "waived" };
	static const char *const plain[] = { "passed", "failed", "waived" };
	bool passed = report->outcome == WINDOW_PASSED;
	unsigned *counts[] = { &tally->passed, &tally->failed, &tally->waived };
	json_t *json;

	++*counts[report->outcome];
	progress_wipe();
	fprintf(choices->table, "  %s  %-15s %s\n", words[report->outcome], test->name,
		passed ? test->what : report->text);
	fflush(choices->table);
	json = json_pack("{s:s, s:s, s:s, s:s}", "test", test->name, "memory", memory->name,
			 "outcome", plain[report->outcome], "what", test->what);
	json_object_set_new(json, "by", output_text(tally->by));
	json_object_set_new(json, "reason", passed ? json_null() : output_text(report->text));
	json_array_append_new(choices->results, json);
}

static bool wanted(const struct window_choices *choices, const struct window_case *test)
{
	return !choices->only || !strcmp(choices->only, test->name);
}

/* The tests of one memory. `missing`: why there is none, and all are waived. */
static void check_memory(struct window_choices *choices, const struct memory *memory,
			 struct report *report, const char *missing, struct tally *tally)
{
	const struct window_case *const tables[] = { window_cases, window_process_cases };

	for (size_t t = 0; t < sizeof(tables) / sizeof(tables[0]); t++)
		for (const struct window_case *test = tables[t]; test->name; test++) {
			if (!wanted(choices, test))
				continue;
			if (missing) {
				report->outcome = WINDOW_WAIVED;
				snprintf(report->text, sizeof(report->text), "%s", missing);
			} else {
				run_apart(report, choices, memory, test, tally);
			}
			tell(choices, memory, test, report, tally);
		}
}

/* Of each memory. */
static unsigned count_tests(const struct window_choices *choices)
{
	unsigned count = 0;

	for (const struct window_case *test = window_cases; test->name; test++)
		count += wanted(choices, test);
	for (const struct window_case *test = window_process_cases; test->name; test++)
		count += wanted(choices, test);
	return count;
}

static int check_all(struct window_choices *choices, struct report *report, struct tally *tally)
{
	for (size_t i = 0; i < choices->memory_count; i++) {
		const struct memory *memory = &choices->memories[i];
		char missing[WINDOW_TEXT] = "";

		run_apart(report, choices, memory, NULL, tally);
		progress_wipe();
		/* Kinds that nobody asked for may be missing, on old drivers. */
		if (report->error == -EOPNOTSUPP && !choices->memories_given && i)
			memcpy(missing, report->text, sizeof(missing));
		else if (report->error)
			return window_fail(memory, report->error, report->text);
		else if (report->outcome == WINDOW_FAILED)
			return window_fail(memory, -EIO, report->text);
		memcpy(tally->by, report->by, sizeof(tally->by));
		fprintf(choices->table, "%s%s%s\n", memory->name, *missing ? "" : ": ", tally->by);
		check_memory(choices, memory, report, *missing ? missing : NULL, tally);
	}
	return EXIT_PASS;
}

int window_check(struct window_choices *choices)
{
	unsigned tests = count_tests(choices);
	struct tally tally = { 0 };
	struct report *report;
	int code;

	if (!tests)
		return usage_error("--test: no test '%s'; wherry window check names them all",
				   choices->only);
	report = mmap(NULL, sizeof(*report), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		      0);
	if (report == MAP_FAILED)
		return fail(errno, "mmap: %s", strerror(errno));
	progress_start_steps(&tally.progress, tally.label, tests * choices->memory_count, false);
	code = check_all(choices, report, &tally);
	progress_end(&tally.progress);
	munmap(report, sizeof(*report));
	if (code)
		return code;
	fprintf(choices->table, "%u tests: %u passed, %u failed, %u waived\n",
		tally.passed + tally.failed + tally.waived, tally.passed, tally.failed,
		tally.waived);
	if (tally.failed)
		return fail(EIO, "%u of the tests failed", tally.failed);
	/* What was all waived has shown nothing. */
	if (!tally.passed)
		return fail(ENODEV, "no test could be done");
	return EXIT_PASS;
}
