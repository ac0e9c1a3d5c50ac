/* SPDX-License-Identifier: Apache-2.0 */
/* How long connecting to a peer takes: the sockets, the proof of the key on both sides, the list of
 * its regions; with the setting tls the TLS handshake as well. */
#include <errno.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>

#include "bench/bench.h"
#include "engine.h"
#include "progress.h"

#define WARM 4 /* connections that are not counted */

struct near {
	const struct arguments *arguments;
	uint64_t *samples; /* BENCH_SAMPLES of them, shared */
	int64_t duration; /* ns */
};

/* Connect to one peer after the other; close each before the next. */
static int connect_often(struct wh_engine *engine, const char *url, const struct near *near,
			 struct bench_answer *answer)
{
	int64_t start = bench_now(), begun;
	struct wh_peer *peer;
	int error = 0;

	for (unsigned i = 0; i < BENCH_SAMPLES; i++) {
		if (i > WARM && bench_now() - start > near->duration)
			break;
		begun = bench_now();
		error = wh_peer_open(engine, url, NULL, &peer);
		if (error)
			break;
		if (i >= WARM)
			near->samples[answer->count++] = (uint64_t)(bench_now() - begun);
		error = wh_peer_close(peer);
		if (error)
			break;
	}
	if (error)
		snprintf(answer->text, sizeof(answer->text), "%.*s", BENCH_TEXT - 1,
			 wh_error_text());
	return error;
}

static void near_serve(int fd, void *arg)
{
	const struct near *near = arg;
	struct engine_setup setup = { .listen = "none" };
	struct wh_engine *engine = NULL;
	struct bench_order order;
	struct bench_answer answer;

	while (bench_next_order(fd, &order)) {
		memset(&answer, 0, sizeof(answer));
		/* An engine reports its own errors. */
		if (order.what == BENCH_CONNECT) {
			int code = engine_open(near->arguments, &setup, &engine);

			answer.error = code ? bench_reported_error(code) :
					      connect_often(engine, order.text, near, &answer);
		}
		if (order.what == BENCH_QUIT && engine)
			engine_close(engine, 0);
		bench_reply(fd, &answer);
		if (order.what == BENCH_QUIT)
			return;
	}
}

static const char *trust_of(const struct arguments *arguments)
{
	static const char *const on[] = { "1", "true", "yes", "on" };
	const char *tls = bench_setting(arguments, "tls");

	for (size_t i = 0; i < sizeof(on) / sizeof(*on); i++)
		if (!strcasecmp(tls, on[i]))
			return *bench_setting(arguments, "tls_cert") ? "certificates, TLS 1.3" :
								       "key, TLS 1.3";
	return "key";
}

static void handshake_evaluate(uint64_t *samples, uint64_t count, struct bench_handshake *out)
{
	double sum = 0;

	for (uint64_t i = 0; i < count; i++)
		sum += (double)samples[i];
	bench_sort(samples, count);
	out->count = count;
	out->mean = sum / (double)count / 1e3;
	out->p50 = (double)bench_percentile(samples, count, 0.5) / 1e3;
	out->p99 = (double)bench_percentile(samples, count, 0.99) / 1e3;
}

int bench_handshake(const struct arguments *arguments, int64_t duration,
		    struct bench_handshake *out, char text[BENCH_TEXT])
{
	size_t size = BENCH_SAMPLES * sizeof(uint64_t);
	uint64_t *samples =
		mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct bench_member_setup far_setup = { .arguments = arguments, .listen = "127.0.0.1:0" };
	struct near near_setup = { arguments, samples, duration };
	struct bench_process near = { 0 }, far = { 0 };
	struct bench_order order = { .what = BENCH_OPEN };
	struct bench_answer answer;
	struct progress progress;
	int error;

	*out = (struct bench_handshake){ .trust = trust_of(arguments) };
	text[0] = '\0';
	if (samples == MAP_FAILED)
		return -ENOMEM;
	error = bench_process_start(&far, "far", BENCH_ANY_CPU, bench_member_serve, &far_setup);
	if (!error)
		error = bench_process_start(&near, "near", BENCH_ANY_CPU, near_serve, &near_setup);
	if (error) {
		snprintf(text, BENCH_TEXT, "fork: %s", strerror(-error));
		goto out;
	}
	/* Not before this point: from here on no process is forked. */
	progress_start_steps(&progress, "connecting, one peer after the other", 0, false);
	progress_watch(&progress);
	error = bench_ask(&far, &order, &answer);
	if (!error) {
		order.what = BENCH_CONNECT;
		order.duration = duration;
		snprintf(order.text, sizeof(order.text), "%.*s", (int)sizeof(order.text) - 1,
			 answer.text);
		error = bench_ask(&near, &order, &answer);
	}
	progress_end(&progress);
	if (error)
		memcpy(text, answer.text, BENCH_TEXT);
	else
		handshake_evaluate(samples, answer.count, out);
out:
	bench_process_end(&near);
	bench_process_end(&far);
	munmap(samples, size);
	return error;
}
