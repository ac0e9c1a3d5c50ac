/* SPDX-License-Identifier: Apache-2.0 */
/* What etcd answers: each line as an answer and as a piece of a watch; and Base64. */
#include "fuzz.h"

#include <errno.h>

#include <wherry/error.h>

#include "rendezvous/etcd.h"

static void try_base64(const uint8_t *data, size_t size)
{
	char *text = malloc(WH_BASE64_SIZE(size)), *back = malloc(size + 1);

	check(text && back);
	wh_base64_encode(data, size, text);
	check(strlen(text) + 1 == WH_BASE64_SIZE(size));
	check(wh_base64_decode(text, back, size) == (long)size);
	check(!size || !memcmp(back, data, size));
	check(!size || wh_base64_decode(text, back, size - 1) == -1);
	free(text);
	free(back);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct wh_etcd_answer answer;
	char *text, decoded[64];

	for (size_t from = 0, end; from <= size; from = end + 1) {
		const uint8_t *newline =
			from < size ? memchr(data + from, '\n', size - from) : NULL;
		int error, changed;

		end = newline ? (size_t)(newline - data) : size;
		error = wh_etcd_parse((const char *)data + from, end - from, &answer);
		check(!error || (error == -EPROTO && *wh_error_text()));
		check(strnlen(answer.token, sizeof(answer.token)) < sizeof(answer.token));
		check(strnlen(answer.error.text, sizeof(answer.error.text)) <
		      sizeof(answer.error.text));
		check(!answer.has_record || wh_registry_name_valid(answer.record.name));
		changed = wh_etcd_parse_watch((const char *)data + from, end - from);
		check(changed == 0 || changed == 1 || changed == -EPROTO);
	}
	try_base64(data, size);
	text = calloc(1, size + 1);
	check(text);
	if (size)
		memcpy(text, data, size);
	check(wh_base64_decode(text, decoded, sizeof(decoded)) <= (long)sizeof(decoded));
	free(text);
	return 0;
}
