/* SPDX-License-Identifier: Apache-2.0 */
/* recv() from TCP connections over loopback, straight into a window, that is into GPU memory. */
#include <errno.h>
#include <math.h>
#include <netinet/in.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bench/bench.h"
#include "window/window.h"

#define STREAMS 16u
#define MIB (UINT64_C(1) << 20)
#define LAPS 8 /* of the whole window, by all streams together */
#define ROUNDS 5

struct stream {
	pthread_t sender, receiver;
	int out, in;
	const unsigned char *from;
	unsigned char *to;
	uint64_t piece, walk, bytes; /* of one call; before starting over; in all */
	int64_t start, end;
	bool good;
};

static void *stream_send(void *arg)
{
	struct stream *s = arg;
	uint64_t sent = 0;

	while (sent < s->bytes) {
		ssize_t n = send(s->out, s->from + sent / s->piece * s->piece % s->walk, s->piece,
				 MSG_NOSIGNAL);

		if (n <= 0)
			break;
		sent += (uint64_t)n;
	}
	shutdown(s->out, SHUT_WR);
	return NULL;
}

static void *stream_receive(void *arg)
{
	struct stream *s = arg;
	uint64_t got = 0;
	ssize_t n;

	s->start = bench_now();
	while ((n = recv(s->in, s->to + got % s->walk, s->piece, MSG_WAITALL)) > 0)
		got += (uint64_t)n;
	__sync_synchronize(); /* drains the CPU's write-combining buffers */
	s->end = bench_now();
	s->good = !n && got >= s->bytes;
	if (!s->good)
		shutdown(s->in, SHUT_RDWR); /* else the sender blocks */
	return NULL;
}

/* Connect two sockets over loopback. 0 or -errno. */
static int stream_connect(int *out, int *in)
{
	struct sockaddr_in where = { .sin_family = AF_INET,
				     .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof(where);
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), error = 0;

	*out = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	*in = -1;
	if (listener < 0 || *out < 0 || bind(listener, (struct sockaddr *)&where, length) ||
	    listen(listener, 1) || getsockname(listener, (struct sockaddr *)&where, &length) ||
	    connect(*out, (struct sockaddr *)&where, length))
		error = -errno;
	else
		*in = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	if (!error && *in < 0)
		error = -errno;
	if (listener >= 0)
		close(listener);
	if (error && *out >= 0)
		close(*out);
	return error;
}

static int stream_start(struct stream *s)
{
	int error = stream_connect(&s->out, &s->in);

	if (error)
		return error;
	error = -pthread_create(&s->receiver, NULL, stream_receive, s);
	if (!error) {
		error = -pthread_create(&s->sender, NULL, stream_send, s);
		if (!error)
			return 0;
		shutdown(s->out, SHUT_WR);
		pthread_join(s->receiver, NULL);
	}
	close(s->in);
	close(s->out);
	return error;
}

static void stream_finish(struct stream *s)
{
	pthread_join(s->sender, NULL);
	pthread_join(s->receiver, NULL);
	close(s->in);
	close(s->out);
}

/* How many streams at once; `far`: the memory of each exceeds the caches. */
struct shape {
	unsigned streams;
	bool far;
};

/* GB/s of all streams, into the window or into pinned memory. 0 or -errno. */
static int receive_measure(struct window_scene *scene, const struct shape *shape, bool window,
			   double *out)
{
	struct stream s[STREAMS];
	uint64_t part = scene->length / STREAMS, piece = part < MIB ? part : MIB;
	uint64_t walk = shape->far ? part / piece * piece : piece;
	uint64_t each = LAPS * scene->length / shape->streams;
	unsigned count = shape->streams;
	unsigned char *to = window ? scene->info.pointer : scene->host + scene->length;
	int64_t first = INT64_MAX, last = 0;
	unsigned started = 0;
	int error = 0;

	while (started < count && !error) {
		s[started] = (struct stream){
			.from = scene->host + started * part,
			.to = to + started * part,
			.piece = piece,
			.walk = walk,
			.bytes = each,
		};
		error = stream_start(&s[started]);
		started += !error;
	}
	for (unsigned i = 0; i < started; i++) {
		stream_finish(&s[i]);
		first = s[i].start < first ? s[i].start : first;
		last = s[i].end > last ? s[i].end : last;
		if (!s[i].good && !error)
			error = -EIO;
	}
	if (!error)
		*out = (double)(each * count) / (double)(last - first);
	return error;
}

static int receive_row(struct window_scene *scene, const struct shape *shape)
{
	const struct window_choices *choices = scene->fixture.choices;
	unsigned rounds = choices->rounds && choices->rounds < ROUNDS ? choices->rounds : ROUNDS;
	struct bench_pairs pairs = { .count = 0 };
	double window = NAN, host = NAN;
	json_t *row;
	int error = 0;

	for (unsigned r = 0; r < rounds && !error; r++) {
		window_doing(scene, "recv() of %u stream%s", shape->streams,
			     shape->streams > 1 ? "s" : "");
		error = receive_measure(scene, shape, true, &window);
		if (!error)
			error = receive_measure(scene, shape, false, &host);
		bench_pairs_add(&pairs, window, host);
	}
	if (error)
		return error;
	row = window_row(scene, "recv");
	json_object_set_new(row, "streams", json_integer(shape->streams));
	json_object_set_new(row, "in_cache", json_boolean(!shape->far));
	window_number(row, "bandwidth_GBps", bench_pairs_test(&pairs));
	json_object_set_new(row, "limit_name", json_string("recv() into pinned memory"));
	window_number(row, "limit_GBps", bench_pairs_limit(&pairs));
	window_number(row, "ratio", bench_pairs_ratio(&pairs));
	fprintf(choices->table, "  %-8u", shape->streams);
	window_cell(choices->table, bench_pairs_test(&pairs), 7, 3);
	window_cell(choices->table, bench_pairs_limit(&pairs), 7, 3);
	fprintf(choices->table, "%s\n", shape->far ? "  all of the window's length" : "");
	return 0;
}

int window_receive(struct window_scene *scene)
{
	static const struct shape shapes[WINDOW_SHAPES] = {
		{ 1, false },
		{ 4, false },
		{ STREAMS, false },
		{ STREAMS, true },
	};
	int error = 0;

	if (!scene->info.pointer || scene->length < STREAMS)
		return 0;
	fprintf(scene->fixture.choices->table, "  %-8s %7s %7s  GB/s of recv()\n", "streams",
		"window", "host");
	for (size_t i = 0; i < WINDOW_SHAPES && !error; i++)
		error = receive_row(scene, &shapes[i]);
	if (error)
		snprintf(scene->text, sizeof(scene->text), "recv() over loopback: %s",
			 strerror(-error));
	return error;
}
