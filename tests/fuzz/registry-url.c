/* SPDX-License-Identifier: Apache-2.0 */
/* The URL of a registry: what is taken is whole, and what is refused does not tell what is secret.
 */
#include "fuzz.h"

#include <errno.h>

#include <wherry/error.h>

#include "rendezvous/registry.h"

#define WORD "SECRET" /* in no text of ours */

/* Is the word in front of an @ and nowhere else? */
static int is_secret(const char *text)
{
	const char *mark = strstr(text, "://"), *from = mark ? mark + 3 : text,
		   *at = strrchr(from, '@');
	char before[64];

	snprintf(before, sizeof(before), "%.*s", (int)(from - text < 63 ? from - text : 63), text);
	return at && from - text < 63 && !strstr(before, WORD) && !strstr(at, WORD);
}

/* Stars stand for all between the scheme and the last @. */
static int shows_no_secret(const char *text, const char *shown)
{
	const char *from = strstr(text, "://") + 3, *at = strrchr(text, '@');
	size_t before = (size_t)(from - text);

	return !strncmp(shown, text, before) && !strncmp(shown + before, "***", 3) &&
	       !strcmp(shown + before + 3, at);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct wh_registry_url url = { .count = 0 };
	char *text = malloc(size + 1), shown[WH_REGISTRY_URL_MAX + 3];
	int error;

	check(text);
	if (size)
		memcpy(text, data, size);
	text[size] = '\0';
	error = wh_registry_url_parse(text, &url);
	wh_registry_url_show(text, shown, sizeof(shown));
	if (error) {
		check(error == -EINVAL && !url.count);
		check(*wh_error_text() && !strchr(wh_error_text(), '\n'));
		if (is_secret(text))
			check(!strstr(wh_error_text(), WORD) && !strstr(shown, WORD));
	} else {
		check(url.count >= 1 && url.count <= WH_REGISTRY_ENDPOINTS);
		for (unsigned i = 0; i < url.count; i++)
			check(strchr(url.endpoint[i], ':') && strlen(url.endpoint[i]) > 2);
		check(strnlen(url.password, sizeof(url.password)) < sizeof(url.password));
		check(url.tls || !*url.cacert);
		check(!*url.cert == !*url.key);
		if (strrchr(text, '@'))
			check(shows_no_secret(text, shown));
	}
	free(text);
	return 0;
}
