/* SPDX-License-Identifier: Apache-2.0 */
/* Engines of this user on this machine: find their sockets, ask all at once with a deadline, merge
 * what they answer. */
#include "observe.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "telemetry/directory.h"
#include "util/clock.h"

#define ENGINES_MOST 256

/* One engine that is being asked. */
struct question {
	int fd;
	int pid; /* from the socket's name */
	const char *why; /* why there is no answer; NULL: still asking, or answered */
	int error; /* an errno that explains `why`; 0: none */
	size_t asked;
	uint8_t header[WH_OBSERVED_HEADER];
	uint8_t *bytes; /* NULL until the header has arrived */
	size_t length, got;
	size_t version; /* of an answer that this command cannot read; 0: none */
	bool done;
};

struct questions {
	struct question list[ENGINES_MOST];
	size_t count;
};

/* ---- asking ---------------------------------------------------------------------------------- */

/* Connect to one socket. A socket without a listener was left behind by an engine that has died:
 * remove it. */
static void observe_dial(struct questions *questions, const char *path, const char *name)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	struct question question = { .pid = *name >= '1' && *name <= '9' ? atoi(name) : -1 };
	int fd;

	if (questions->count == ENGINES_MOST ||
	    snprintf(address.sun_path, sizeof(address.sun_path), "%s", path) >=
		    (int)sizeof(address.sun_path))
		return;
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return;
	if (connect(fd, (struct sockaddr *)&address, sizeof(address))) {
		question.error = errno;
		close(fd);
		fd = -1;
		if (question.error == ECONNREFUSED)
			unlink(path);
		/* The engine has just ended. */
		if (question.error == ECONNREFUSED || question.error == ENOENT)
			return;
		question.why = question.error == EAGAIN ? "its queue of observers is full" : NULL;
	}
	question.fd = fd;
	question.done = fd < 0;
	questions->list[questions->count++] = question;
}

/* Connect to all sockets in `directory`. 0, or a negative errno: the directory cannot be read. */
static int observe_dial_all(struct questions *questions, const char *directory)
{
	int error = wh_observer_check(directory);
	DIR *folder = error ? NULL : opendir(directory);
	struct dirent *entry;
	char path[512];

	if (!error && !folder)
		error = -errno;
	while (folder && (entry = readdir(folder))) {
		size_t length = strlen(entry->d_name), end = strlen(WH_OBSERVER_SUFFIX);

		if (length <= end || strcmp(entry->d_name + length - end, WH_OBSERVER_SUFFIX) != 0)
			continue;
		snprintf(path, sizeof(path), "%s/%s", directory, entry->d_name);
		observe_dial(questions, path, entry->d_name);
	}
	if (folder)
		closedir(folder);
	return error;
}

/* Send and receive as much as is possible without waiting. */
static void question_progress(struct question *question)
{
	ssize_t moved = 1;

	while (moved > 0 && question->asked < WH_OBSERVE_REQUEST_SIZE) {
		moved = send(question->fd, WH_OBSERVE_REQUEST + question->asked,
			     WH_OBSERVE_REQUEST_SIZE - question->asked,
			     MSG_DONTWAIT | MSG_NOSIGNAL);
		if (moved > 0)
			question->asked += (size_t)moved;
	}
	while (moved > 0) {
		bool head = question->got < WH_OBSERVED_HEADER;
		size_t end = head ? WH_OBSERVED_HEADER : question->length;
		uint8_t *to = head ? question->header : question->bytes;

		if (question->got == end) {
			question->done = true;
			return;
		}
		moved = recv(question->fd, to + question->got, end - question->got, MSG_DONTWAIT);
		if (moved > 0)
			question->got += (size_t)moved;
		if (moved <= 0 || question->got != WH_OBSERVED_HEADER || question->bytes)
			continue;
		question->error = -wh_observation_length(question->header, &question->length);
		if (question->error == ENOTSUP)
			question->version = question->length;
		else if (question->error)
			question->why = "its answer is malformed";
		else if (!(question->bytes = malloc(question->length)))
			question->error = ENOMEM;
		if (question->error) {
			question->done = true;
			return;
		}
		memcpy(question->bytes, question->header, WH_OBSERVED_HEADER);
	}
	if (moved != 0 && (errno == EAGAIN || errno == EINTR))
		return;
	question->done = true;
	if (moved == 0)
		question->why = question->got ? "its answer ends too early" :
						"it closed the connection without an answer";
	else
		question->error = errno;
}

static void ask_all(struct questions *questions, int64_t deadline)
{
	struct pollfd fds[ENGINES_MOST];
	size_t open = 1;

	while (open && wh_now() < deadline) {
		open = 0;
		for (size_t i = 0; i < questions->count; i++) {
			struct question *question = &questions->list[i];

			fds[i] = (struct pollfd){ .fd = -1 };
			if (!question->done)
				question_progress(question);
			if (question->done)
				continue;
			fds[i] = (struct pollfd){ question->fd, POLLIN, 0 };
			open++;
		}
		if (open)
			poll(fds, questions->count, (int)((deadline - wh_now()) / WH_MS + 1));
	}
}

/* ---- answers --------------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
	const struct wh_observed_engine *one = &((const struct wh_observation *)a)->engine,
					*other = &((const struct wh_observation *)b)->engine;
	int order = strcmp(one->name, other->name);

	return order ? order : (one->epoch > other->epoch) - (one->epoch < other->epoch);
}

/* Two paths to one directory find the same engine twice: keep one. */
static void observe_drop_duplicates(struct observed *out)
{
	size_t used = 0;

	for (size_t i = 0; i < out->count; i++) {
		if (used && by_name(&out->engines[used - 1], &out->engines[i]) == 0)
			wh_observation_free(&out->engines[i]);
		else
			out->engines[used++] = out->engines[i];
	}
	out->count = used;
}

static void say_why(const struct question *question, double seconds, struct observe_silent *out)
{
	out->pid = question->pid;
	if (question->version)
		snprintf(out->why, sizeof(out->why),
			 "it answers in version %zu, this command reads version %d",
			 question->version, WH_OBSERVED_VERSION);
	else if (question->why)
		snprintf(out->why, sizeof(out->why), "%s", question->why);
	else if (question->error)
		snprintf(out->why, sizeof(out->why), "%s", strerror(question->error));
	else if (question->done)
		snprintf(out->why, sizeof(out->why), "its answer is malformed");
	else
		snprintf(out->why, sizeof(out->why), "no answer within %.1f s", seconds);
}

static void take_answers(struct questions *questions, double seconds, struct observed *out)
{
	for (size_t i = 0; i < questions->count; i++) {
		struct question *question = &questions->list[i];

		if (question->bytes && question->got == question->length &&
		    !wh_observation_parse(question->bytes, question->length,
					  &out->engines[out->count]))
			out->count++;
		else
			say_why(question, seconds, &out->silents[out->silent++]);
		if (question->fd >= 0)
			close(question->fd);
		free(question->bytes);
	}
	if (out->count)
		qsort(out->engines, out->count, sizeof(*out->engines), by_name);
	observe_drop_duplicates(out);
}

const char *observe_directory(const struct arguments *arguments)
{
	const char *directory = argument(arguments, "observe");

	if (!directory)
		directory = getenv("WHERRY_OBSERVE");
	return directory && *directory ? directory : NULL;
}

int observe_all(const char *directory, double seconds, struct observed *out)
{
	struct questions *questions = calloc(1, sizeof(*questions));
	char path[256];

	*out = (struct observed){ .engines = calloc(ENGINES_MOST, sizeof(*out->engines)),
				  .silents = calloc(ENGINES_MOST, sizeof(*out->silents)) };
	if (!questions || !out->engines || !out->silents) {
		free(questions);
		observe_free(out);
		return -ENOMEM;
	}
	if (directory && strcmp(directory, "off") != 0) {
		int error = observe_dial_all(questions, directory);

		if (error)
			snprintf(out->why, sizeof(out->why), "%.120s: %s", directory,
				 error == -EPERM ? "it must belong to this user alone" :
						   strerror(-error));
	}
	for (unsigned i = 0;
	     !directory && wh_observer_directory(i, getenv("XDG_RUNTIME_DIR"), path, sizeof(path));
	     i++) {
		char before[256] = "";

		/* XDG_RUNTIME_DIR usually is the second directory. */
		if (i == 1)
			wh_observer_directory(0, getenv("XDG_RUNTIME_DIR"), before, sizeof(before));
		if (*path && strcmp(path, before) != 0)
			observe_dial_all(questions, path);
	}
	ask_all(questions, wh_now() + (int64_t)(seconds * 1e9));
	take_answers(questions, seconds, out);
	free(questions);
	return 0;
}

void observe_free(struct observed *observed)
{
	for (size_t i = 0; i < observed->count; i++)
		wh_observation_free(&observed->engines[i]);
	free(observed->engines);
	free(observed->silents);
	*observed = (struct observed){ 0 };
}

/* ---- merging --------------------------------------------------------------------------------- */

int observe_order(const struct wh_observed_peer *one, const struct wh_observed_peer *other)
{
	int order = strcmp(one->name, other->name);

	return order ? order : strcmp(one->address, other->address);
}

static int by_peer(const void *a, const void *b)
{
	return observe_order(a, b);
}

static int by_session(const void *a, const void *b)
{
	return strcmp(((const struct wh_observed_session *)a)->name,
		      ((const struct wh_observed_session *)b)->name);
}

static void add_latency(struct wh_latency *into, const struct wh_latency *from)
{
	into->count += from->count;
	into->sum += from->sum;
	for (unsigned i = 0; i < WH_LATENCY_BUCKETS; i++)
		into->bucket[i] += from->bucket[i];
}

static void add_peer(struct wh_observed_peer *into, const struct wh_observed_peer *from)
{
	into->lost += from->lost;
	/* Show the worst of their states. */
	if (from->state > into->state)
		into->state = from->state;
	into->counters.batches += from->counters.batches;
	into->counters.failed += from->counters.failed;
	into->counters.cancelled += from->counters.cancelled;
	/* Both are counters of one engine, which lists its transports in one order. */
	for (unsigned i = 0; i < into->counters.transports && i < from->counters.transports; i++) {
		struct wh_transport_counters *t = &into->counters.transport[i];
		const struct wh_transport_counters *f = &from->counters.transport[i];

		t->read_bytes += f->read_bytes;
		t->written_bytes += f->written_bytes;
		t->reads += f->reads;
		t->writes += f->writes;
		t->errors += f->errors;
		t->reroutes += f->reroutes;
		t->attempts += f->attempts;
	}
	into->counters.large_in_flight += from->counters.large_in_flight;
	add_latency(&into->counters.small, &from->counters.small);
	add_latency(&into->counters.large, &from->counters.large);
}

void observe_merge(struct wh_observation *observation)
{
	struct wh_observed_peer *peers = observation->peers;
	struct wh_observed_session *sessions = observation->sessions;
	size_t used = 0;

	if (observation->peer_count)
		qsort(peers, observation->peer_count, sizeof(*peers), by_peer);
	for (size_t i = 0; i < observation->peer_count; i++) {
		if (used && observe_order(&peers[used - 1], &peers[i]) == 0)
			add_peer(&peers[used - 1], &peers[i]);
		else
			peers[used++] = peers[i];
	}
	observation->peer_count = used;
	used = 0;
	if (observation->session_count)
		qsort(sessions, observation->session_count, sizeof(*sessions), by_session);
	for (size_t i = 0; i < observation->session_count; i++) {
		if (used && strcmp(sessions[used - 1].name, sessions[i].name) == 0) {
			sessions[used - 1].read_bytes += sessions[i].read_bytes;
			sessions[used - 1].written_bytes += sessions[i].written_bytes;
			sessions[used - 1].requests += sessions[i].requests;
		} else {
			sessions[used++] = sessions[i];
		}
	}
	observation->session_count = used;
}
