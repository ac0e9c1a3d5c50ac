/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the wherry command that run in the world call of its other parts: the command
 * line, messages and progress. calls.txt gives NAME() the name tool_NAME(). */
#include <stdarg.h>
#include <string.h>

#include "../../tools/program.h"
#include "progress.h"
#include "tools.h"
#include "world.h"

static _Thread_local char text[256]; /* of each thread of the world */

const char *tools_text(void)
{
	return text;
}

static void tell(const char *format, va_list list)
{
	vsnprintf(text, sizeof(text), format, list);
	sim_trace("    wherry: %s", text);
}

/* ---- messages -------------------------------------------------------------------------------- */

int tool_fail(int error, const char *format, ...)
{
	va_list list;

	(void)error;
	va_start(list, format);
	tell(format, list);
	va_end(list);
	return EXIT_FAIL;
}

int tool_usage_error(const char *format, ...)
{
	va_list list;

	va_start(list, format);
	tell(format, list);
	va_end(list);
	sim_fail("usage", "%s", text);
}

void tool_note(const char *format, ...)
{
	va_list list;

	va_start(list, format);
	tell(format, list);
	va_end(list);
}

int tool_reach_error(int error)
{
	return error;
}

void tool_suggest(struct suggestion *suggestion, const char *candidate)
{
	(void)suggestion;
	(void)candidate;
}

/* ---- the command line ------------------------------------------------------------------------ */

const char *tool_argument(const struct arguments *arguments, const char *name)
{
	const struct tools_copy *copy = (const struct tools_copy *)arguments;

	if (strcmp(name, "recursive") == 0 || strcmp(name, "quiet") == 0)
		return "";
	if (strcmp(name, "resume") == 0)
		return copy->resume ? "" : NULL;
	if (strcmp(name, "verify") == 0)
		return copy->verify ? "" : NULL;
	return NULL;
}

const char *tool_argument_next(const struct arguments *arguments, const char *name, int *cursor)
{
	const struct tools_copy *copy = (const struct tools_copy *)arguments;

	return strcmp(name, "config") == 0 && copy->config[*cursor] ? copy->config[(*cursor)++] :
								      NULL;
}

int tool_check_choice(const struct arguments *arguments, const char *name)
{
	(void)arguments;
	(void)name;
	return 0;
}

int tool_parse_count(const char *number, const char *what, uint64_t least, uint64_t most,
		     uint64_t *out)
{
	(void)number;
	(void)least;
	(void)most;
	(void)out;
	sim_die("%s is no option of the world", what);
}

int tool_parse_size(const char *size, const char *what, uint64_t *out)
{
	tool_parse_count(size, what, 0, 0, out);
}

bool tool_read_size(const char *size, uint64_t *out)
{
	return tool_parse_size(size, size, out);
}

/* ---- progress and output: nobody looks ------------------------------------------------------- */

void tool_progress_start(struct progress *progress, const char *label, uint64_t total, bool quiet)
{
	(void)progress;
	(void)label;
	(void)total;
	(void)quiet;
}

void tool_progress_start_steps(struct progress *progress, const char *label, uint64_t total,
			       bool quiet)
{
	tool_progress_start(progress, label, total, quiet);
}

void tool_progress_watch(struct progress *progress)
{
	(void)progress;
}

void tool_progress_move(struct progress *progress, uint64_t done)
{
	(void)progress;
	(void)done;
}

void tool_progress_end(struct progress *progress)
{
	(void)progress;
}

static void no_output(void)
{
	sim_die("the world's commands are quiet");
}

void tool_end_print_routes(void)
{
	no_output();
}

void tool_end_add_routes(void)
{
	no_output();
}

void tool_output_new(void)
{
	no_output();
}

void tool_output_text(void)
{
	no_output();
}

void tool_output_print(void)
{
	no_output();
}
