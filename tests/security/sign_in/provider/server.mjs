// The identity provider of the tests: a certified one, with people, programs and keys of a test.
// Its argument is {clients, keys, audience, groups}; it prints its issuer when it answers.
// POST /test/keys replaces its keys, GET /test/refreshes counts the refresh tokens that were used.
import http from 'node:http';
import Provider from 'oidc-provider';

const given = JSON.parse(process.argv[2]);

function configure(keys) {
  return {
    clients: given.clients,
    jwks: { keys },
    cookies: { keys: ['one key of a test'] },
    claims: {
      openid: ['sub'],
      profile: ['name'],
      email: ['email'],
      groups: ['groups'],
    },
    scopes: ['openid', 'offline_access', 'profile', 'email', 'groups'],
    // ID tokens carry the claims of their scopes, as those of most providers do.
    conformIdTokenClaims: given.conform ?? false,
    pkce: { required: () => true },
    rotateRefreshToken: true,
    ttl: { AccessToken: 600, IdToken: given.lifetime ?? 600, DeviceCode: 600 },
    enabledJWA: { idTokenSigningAlgValues: ['RS256', 'PS256', 'ES256', 'EdDSA'] },
    features: {
      clientCredentials: { enabled: true },
      deviceFlow: { enabled: true },
      revocation: { enabled: true },
      rpInitiatedLogout: { enabled: true },
      resourceIndicators: {
        enabled: true,
        getResourceServerInfo: (ctx, resource) => ({
          scope: '',
          audience: resource,
          accessTokenFormat: 'jwt',
          accessTokenTTL: 600,
          jwt: { sign: { alg: 'RS256' } },
        }),
      },
    },
    findAccount: (ctx, id) => ({
      accountId: id,
      claims: () => ({
        sub: id, name: `Name of ${id}`, email: `${id}@example.org`, groups: given.groups[id] ?? [],
      }),
    }),
  };
}

let provider;
let answer;
let refreshes = 0;

function begin(issuer, keys) {
  provider = new Provider(issuer, configure(keys));
  provider.on('grant.success', (ctx) => {
    refreshes += ctx.oidc.params.grant_type === 'refresh_token' ? 1 : 0;
  });
  answer = provider.callback();
}

const server = http.createServer((request, response) => {
  if (request.method === 'POST' && request.url === '/test/keys') {
    const parts = [];
    request.on('data', (part) => parts.push(part));
    request.on('end', () => {
      begin(provider.issuer, JSON.parse(Buffer.concat(parts).toString()));
      response.end('{}');
    });
    return;
  }
  if (request.url === '/test/refreshes') {
    response.end(String(refreshes));
    return;
  }
  answer(request, response);
});

server.listen(0, '127.0.0.1', () => {
  const issuer = `http://127.0.0.1:${server.address().port}`;
  begin(issuer, given.keys);
  process.stdout.write(`ready ${issuer}\n`);
});
