// Where a request goes: by what its client calls related, else by its user, else by its beginning.

const BEGINNING = 256;

function key(request) {
    const body = request.variables.request_body || '';
    try {
        const fields = JSON.parse(body);
        const found = fields.prompt_cache_key || fields.user;
        if (typeof found === 'string') {
            return found;
        }
    } catch (error) {
        // The replica says what is wrong with it.
    }
    return body.slice(0, BEGINNING);
}

export default { key };
