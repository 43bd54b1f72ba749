package objectstore

import (
	"context"
	"strings"
)

// prefixed keeps all its objects below a prefix of another store's keys.
type prefixed struct {
	inner  Store
	prefix string
}

var _ Store = (*prefixed)(nil)

// WithPrefix returns a view of inner in which every key is inner's key without
// prefix, so that several constellations share one bucket. The prefix is one or
// more whole segments and ends in a slash; it counts towards MaxKeyBytes of
// inner's keys. An invalid prefix makes every call fail with ErrPermanent. Close
// closes inner. Errors name inner's key.
func WithPrefix(inner Store, prefix string) Store {
	if prefix == "" {
		return inner
	}
	return &prefixed{inner: inner, prefix: prefix}
}

func (p *prefixed) key(op, key string) (string, error) {
	if !strings.HasSuffix(p.prefix, "/") {
		return "", Fail(op, key, ErrPermanent, "the prefix %q does not end in a slash", p.prefix)
	}
	// The key alone first, so that the rule is stated about what the caller gave.
	if err := CheckKey(op, key); err != nil {
		return "", err
	}
	return p.prefix + key, nil
}

func (p *prefixed) PutIfAbsent(ctx context.Context, key string, body []byte) (ETag, error) {
	full, err := p.key("PutIfAbsent", key)
	if err != nil {
		return "", err
	}
	return p.inner.PutIfAbsent(ctx, full, body)
}

func (p *prefixed) PutIfMatch(ctx context.Context, key string, body []byte, etag ETag) (ETag, error) {
	full, err := p.key("PutIfMatch", key)
	if err != nil {
		return "", err
	}
	return p.inner.PutIfMatch(ctx, full, body, etag)
}

func (p *prefixed) Get(ctx context.Context, key string) (Object, error) {
	full, err := p.key("Get", key)
	if err != nil {
		return Object{}, err
	}
	return p.inner.Get(ctx, full)
}

func (p *prefixed) GetRange(ctx context.Context, key string, r Range) (Object, error) {
	full, err := p.key("GetRange", key)
	if err != nil {
		return Object{}, err
	}
	return p.inner.GetRange(ctx, full, r)
}

func (p *prefixed) Delete(ctx context.Context, keys ...string) error {
	full := make([]string, len(keys))
	for i, key := range keys {
		var err error
		if full[i], err = p.key("Delete", key); err != nil {
			return err
		}
	}
	return p.inner.Delete(ctx, full...)
}

func (p *prefixed) List(ctx context.Context, prefix, after string, limit int) ([]Info, error) {
	if err := CheckList(prefix, limit); err != nil {
		return nil, err
	}
	if after != "" {
		after = p.prefix + after
	}
	infos, err := p.inner.List(ctx, p.prefix+prefix, after, limit)
	for i := range infos {
		infos[i].Key = strings.TrimPrefix(infos[i].Key, p.prefix)
	}
	return infos, err
}

func (p *prefixed) Close() error { return p.inner.Close() }
