// What a new playbook begins with.
export const STARTER = `apiVersion: noetl.io/v2
kind: Playbook
metadata:
  name: hello
  path: examples/hello-console
workload:
  who: world
workflow:
  - step: greet
    tool:
      kind: python
      input: {who: "{{ workload.who }}"}
      code: |
        print(f"hello {who}")
        result = {"greeting": f"hello {who}"}
`;
