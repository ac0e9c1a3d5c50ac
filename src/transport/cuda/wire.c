/* SPDX-License-Identifier: Apache-2.0 */
/* Encoders and decoders of FABRIC_ASK and FABRIC_ANSWER. */
#include "transport/cuda/wire.h"

#include <errno.h>

#include "wire/bytes.h"

size_t wh_fabric_ask_encode(uint8_t *out, const struct wh_fabric_ask *ask)
{
	uint8_t *at = wh_put64(out, ask->token);

	at = wh_put64(at, ask->id);
	at = wh_put32(at, ask->segment);
	at = wh_put32(at, ask->domain_count);
	for (uint32_t i = 0; i < ask->domain_count; i++) {
		at = wh_put_bytes(at, ask->domains[i].cluster, sizeof(ask->domains[i].cluster));
		at = wh_put32(at, ask->domains[i].clique);
	}
	return (size_t)(at - out);
}

int wh_fabric_ask_decode(const uint8_t *in, size_t length, struct wh_fabric_ask *out)
{
	struct wh_bytes bytes = { .at = in, .end = in + length };
	struct wh_fabric_ask ask = { 0 };

	ask.token = wh_take64(&bytes);
	ask.id = wh_take64(&bytes);
	ask.segment = wh_take32(&bytes);
	ask.domain_count = wh_take32(&bytes);
	if (bytes.cut || !ask.domain_count || ask.domain_count > WH_FABRIC_DOMAINS)
		return -EPROTO;
	for (uint32_t i = 0; i < ask.domain_count; i++) {
		wh_take_bytes(&bytes, ask.domains[i].cluster, sizeof(ask.domains[i].cluster));
		ask.domains[i].clique = wh_take32(&bytes);
	}
	if (bytes.cut || bytes.at != bytes.end)
		return -EPROTO;
	*out = ask;
	return 0;
}

size_t wh_fabric_answer_encode(uint8_t *out, const struct wh_fabric_answer *answer)
{
	uint8_t *at = wh_put32(wh_put64(out, answer->token), answer->domain);

	return WH_FABRIC_ANSWER_HEAD + wh_exported_encode(at, &answer->exported);
}

int wh_fabric_answer_decode(const uint8_t *in, size_t length, struct wh_fabric_answer *out)
{
	struct wh_bytes bytes = { .at = in, .end = in + length };
	struct wh_fabric_answer answer = { 0 };

	answer.token = wh_take64(&bytes);
	answer.domain = wh_take32(&bytes);
	if (bytes.cut || answer.domain >= WH_FABRIC_DOMAINS ||
	    wh_exported_decode(bytes.at, (size_t)(bytes.end - bytes.at), &answer.exported))
		return -EPROTO;
	if (answer.exported.error ? answer.domain != 0 : answer.exported.type != WH_HANDLE_FABRIC)
		return -EPROTO;
	*out = answer;
	return 0;
}
